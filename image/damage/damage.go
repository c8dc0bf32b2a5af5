// Package damage tells errors of damaged files from errors that say nothing about a file, and names
// the files that are set aside.
package damage

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// notOfTheFile are errors of reading a file that say nothing about what is in it: another time, or
// with other rights, it may be read.
var notOfTheFile = []error{
	unix.EACCES, unix.EPERM, unix.EROFS, unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.ENOBUFS,
	unix.ENOSPC, unix.EDQUOT, unix.EINTR, unix.EAGAIN, unix.EBUSY, unix.ETIMEDOUT, unix.ESTALE,
}

// OfFile says whether an error of reading or opening a file means that the file is damaged:
// it cannot be read (EIO, EUCLEAN), or is no file at all (EISDIR, ENOTDIR, ENXIO).
func OfFile(err error) bool {
	return err != nil && !slices.ContainsFunc(notOfTheFile, func(other error) bool { return errors.Is(err, other) })
}

// OfDisk says whether an error is that of a device that cannot read what was written to it, or of
// a file system that has found itself damaged there.
func OfDisk(err error) bool {
	return errors.Is(err, unix.EIO) || errors.Is(err, unix.EUCLEAN) || errors.Is(err, unix.EBADMSG)
}

// ErrNoFile is something else where a file belongs.
var ErrNoFile = errors.New("not a regular file")

// CheckFile fails if something else than a file is there; of a pipe, say, opening it would not
// return.
func CheckFile(path string) error {
	st, err := os.Stat(path)
	if err == nil && !st.Mode().IsRegular() {
		err = fmt.Errorf("%s: %w", path, ErrNoFile)
	}
	return err
}

// ReadFile reads a regular file.
func ReadFile(path string) ([]byte, error) {
	if err := CheckFile(path); err != nil {
		return nil, err
	}
	return os.ReadFile(path)
}

// Aside is the name that something damaged is kept under.
func Aside(path string) string {
	return path + ".damaged-" + time.Now().UTC().Format("20060102T150405.000")
}

package image

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// errRotten is a stored blob that is not what its digest says any more, or cannot be read. It
// may as well not be there: what comes in its stead takes its name.
var errRotten = errors.New("stored blob is damaged")

// notOfTheFile are errors of reading a file that say nothing about what is in it: another time, or
// with other rights, it may be read.
var notOfTheFile = []error{
	unix.EACCES, unix.EPERM, unix.EROFS, unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.ENOBUFS,
	unix.ENOSPC, unix.EDQUOT, unix.EINTR, unix.EAGAIN, unix.EBUSY, unix.ETIMEDOUT, unix.ESTALE,
}

// isOfTheFile says whether an error of reading or opening a file means that the file is damaged:
// it cannot be read (EIO, EUCLEAN), or is no file at all (EISDIR, ENOTDIR, ENXIO).
func isOfTheFile(err error) bool {
	return err != nil && !slices.ContainsFunc(notOfTheFile, func(other error) bool { return errors.Is(err, other) })
}

// isOfTheDisk says whether an error is that of a device that cannot read what was written to it, or of
// a file system that has found itself damaged there.
func isOfTheDisk(err error) bool {
	return errors.Is(err, unix.EIO) || errors.Is(err, unix.EUCLEAN) || errors.Is(err, unix.EBADMSG)
}

// errNoFile is something else where a file belongs.
var errNoFile = errors.New("not a regular file")

// checkFile fails if something else than a file is there; of a pipe, say, opening it would not return.
func checkFile(path string) error {
	st, err := os.Stat(path)
	if err == nil && !st.Mode().IsRegular() {
		err = fmt.Errorf("%s: %w", path, errNoFile)
	}
	return err
}

// readFile reads a file of the store's own.
func readFile(path string) ([]byte, error) {
	if err := checkFile(path); err != nil {
		return nil, err
	}
	return os.ReadFile(path)
}

// damagedName is the name that something damaged is kept under.
func damagedName(path string) string {
	return path + ".damaged-" + time.Now().UTC().Format("20060102T150405.000")
}

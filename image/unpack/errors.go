package unpack

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"

	"github.com/coracle-project/coracle/internal/safepath"
	"golang.org/x/sys/unix"
)

// invalid words a refusal of an entry.
func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrInvalid, fmt.Sprintf(format, args...))
}

// archiveError tells damage of the archive from an error of the stream beneath it,
// which is the network's and is passed on as it is.
func archiveError(err error) error {
	if errors.Is(err, tar.ErrHeader) || errors.Is(err, tar.ErrFieldTooLong) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%w: damaged archive: %w", ErrInvalid, err)
	}
	return err
}

// kind marks the errors that the archive is to blame for as ErrInvalid. What is
// left is the machine's fault (ENOSPC, EIO) or the stream's.
func kind(err error) error {
	if errors.Is(err, ErrInvalid) {
		return err
	}
	for _, blame := range []error{
		safepath.ErrEscapes, unix.ELOOP, unix.ENOTDIR, unix.ENAMETOOLONG, unix.EINVAL,
		unix.ENOENT, unix.EISDIR, unix.EMLINK, io.ErrUnexpectedEOF, tar.ErrHeader,
	} {
		if errors.Is(err, blame) {
			return fmt.Errorf("%w: %w", ErrInvalid, err)
		}
	}
	return err
}

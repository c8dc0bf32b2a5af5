// Package recordfile reads and writes the JSON files in which our programs record what they have
// made, so that the next program, older or newer, can continue with it.
//
// A record has a field "version". A new field keeps the version: a program keeps the fields that it
// does not know when it rewrites the record (Kept). Only a change that an older program would
// misunderstand raises the version. An older program leaves such a record alone (NewerError).
//
// There are three kinds of failure, because they need different reactions:
//
//	transient.Is(err)  the file may be fine: try again later
//	*NewerError        the file is fine: leave it to the program that wrote it
//	ErrDamaged         the file is useless: use what else is known
package recordfile

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"

	"golang.org/x/sys/unix"
)

// ErrDamaged is wrapped by all errors about the content of a record.
var ErrDamaged = errors.New("damaged record")

// NewerError means that a record has a version that this program does not know yet.
type NewerError struct {
	Path         string
	Found, Known int
}

func (e *NewerError) Error() string {
	return fmt.Sprintf("record %s has version %d, and this program knows versions up to %d: a newer Coracle wrote it; install that version "+
		"again, or first remove with it what the record describes",
		e.Path, e.Found, e.Known)
}

// Newer returns the NewerError in err, or nil.
func Newer(err error) *NewerError {
	var e *NewerError
	if errors.As(err, &e) {
		return e
	}
	return nil
}

// maxSize limits a record. Records of containers have a few kilobytes; seccomp filters and
// annotations can make them larger.
const maxSize = 16 << 20

// Read returns a record's content. Anything but a regular file is ErrDamaged: reading a FIFO
// in its place would hang.
func Read(path string) ([]byte, error) {
	fd, err := again(func() (int, error) {
		return unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	})
	switch {
	case errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENXIO): // a symbolic link or a socket
		return nil, fmt.Errorf("read %s: not a regular file: %w", path, ErrDamaged)
	case err != nil:
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, fmt.Errorf("read %s: not a regular file: %w", path, ErrDamaged)
	}
	if st.Size > maxSize {
		return nil, fmt.Errorf("read %s: %d bytes: %w", path, st.Size, ErrDamaged)
	}
	out := make([]byte, 0, st.Size+1)
	for {
		n, err := again(func() (int, error) { return unix.Read(fd, out[len(out):cap(out)]) })
		if err != nil {
			return nil, &fs.PathError{Op: "read", Path: path, Err: err}
		}
		if n == 0 {
			return out, nil
		}
		if out = out[:len(out)+n]; len(out) > maxSize {
			return nil, fmt.Errorf("read %s: file grows while it is read: %w", path, ErrDamaged)
		}
		if len(out) == cap(out) {
			out = append(out, 0)[:len(out)]
		}
	}
}

func again(call func() (int, error)) (int, error) {
	for {
		n, err := call()
		if !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}

// Check checks only the version of a record with the given content. known is the version that this
// program writes.
func Check(path string, data []byte, known int) error {
	var v struct {
		Version *int `json:"version"`
	}
	if err := json.Unmarshal(data, &v); err != nil {
		return fmt.Errorf("read %s: %w: %w", path, ErrDamaged, err)
	}
	switch {
	case v.Version == nil || *v.Version < 1:
		return fmt.Errorf("read %s: no version: %w", path, ErrDamaged)
	case *v.Version > known:
		return &NewerError{Path: path, Found: *v.Version, Known: known}
	}
	return nil
}

// CheckNotNewer returns a NewerError for a record with a newer version, and nil for any other
// content. The rest of a newer record may have other types, so it is checked before it is parsed.
func CheckNotNewer(path string, data []byte, known int) error {
	if err := Check(path, data, known); Newer(err) != nil {
		return err
	}
	return nil
}

// CheckFile is Check for a file.
func CheckFile(path string, known int) error {
	data, err := Read(path)
	if err != nil {
		return err
	}
	return Check(path, data, known)
}

// Decode decodes a record of a version that this program knows into v, a pointer to a struct. kept
// is the fields that v does not have.
func Decode(path string, data []byte, known int, v any) (kept *Kept, err error) {
	if err := Check(path, data, known); err != nil {
		return nil, err
	}
	if err := json.Unmarshal(data, v); err != nil {
		return nil, fmt.Errorf("read %s: %w: %w", path, ErrDamaged, err)
	}
	return Keep(data, v), nil
}

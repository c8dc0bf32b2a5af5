// Package kernfile reads and makes small files with as few system calls as that takes. A
// container's life is full of them: files of proc(5) and cgroups(7), records on a tmpfs. Package
// os asks the poller about each, for which a regular file is a mistake, and grows its buffers.
package kernfile

import (
	"errors"
	"fmt"
	"io/fs"

	"golang.org/x/sys/unix"
)

// Read returns a file's content, which is best a few kilobytes. Errors are *fs.PathError.
func Read(path string) ([]byte, error) {
	fd, err := ignoringEINTR(func() (int, error) { return unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0) })
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	out := make([]byte, 0, 2048)
	for {
		n, err := ignoringEINTR(func() (int, error) { return unix.Read(fd, out[len(out):cap(out)]) })
		if err != nil {
			return nil, &fs.PathError{Op: "read", Path: path, Err: err}
		}
		if n == 0 {
			return out, nil
		}
		if out = out[:len(out)+n]; len(out) == cap(out) {
			out = append(out, 0)[:len(out)]
		}
	}
}

// Create makes a file that must not exist. Errors are *fs.PathError; a file that could not be
// filled is removed.
func Create(path string, data []byte, perm uint32) error {
	fd, err := ignoringEINTR(func() (int, error) {
		return unix.Open(path, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, perm)
	})
	if err != nil {
		return &fs.PathError{Op: "create", Path: path, Err: err}
	}
	err = fill(fd, data, perm)
	if closeErr := unix.Close(fd); err == nil {
		err = closeErr
	}
	if err != nil {
		_ = unix.Unlink(path)
		return &fs.PathError{Op: "write", Path: path, Err: err}
	}
	return nil
}

func fill(fd int, data []byte, perm uint32) error {
	if err := unix.Fchmod(fd, perm); err != nil { // whatever the umask is
		return err
	}
	for len(data) > 0 {
		n, err := ignoringEINTR(func() (int, error) { return unix.Write(fd, data) })
		if err != nil {
			return err
		}
		if n == 0 {
			return fmt.Errorf("nothing was written: %w", unix.EIO)
		}
		data = data[n:]
	}
	return nil
}

func ignoringEINTR(call func() (int, error)) (int, error) {
	for {
		n, err := call()
		if !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}

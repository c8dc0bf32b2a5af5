package safepath

import (
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// Remove deletes a file or an empty directory.
func (d *Dir) Remove(name string) error {
	return d.at("remove", name, func() error { return removeAt(d.fd, name) })
}

// RemoveAll deletes an entry with everything in it; nothing there is success.
// It descends by descriptors, so a directory that is swapped for a link while it
// works is removed as a link. Each level of nesting holds a descriptor meanwhile.
func (d *Dir) RemoveAll(name string) error {
	return d.at("remove", name, func() error { return removeAllAt(d.fd, name) })
}

// removeAt chooses between unlink and rmdir as os.Remove does: files are the
// usual case, and Linux answers EISDIR for directories.
func removeAt(dirfd int, name string) error {
	err := unix.Unlinkat(dirfd, name, 0)
	if err == unix.EISDIR || err == unix.EPERM {
		if rmdir := unix.Unlinkat(dirfd, name, unix.AT_REMOVEDIR); rmdir != unix.ENOTDIR {
			return rmdir
		}
	}
	return err
}

func removeAllAt(dirfd int, name string) error {
	err := removeAt(dirfd, name)
	if err == nil || err == unix.ENOENT {
		return nil
	}
	if err != unix.ENOTEMPTY && err != unix.EEXIST {
		return err
	}
	fd, err := unix.Openat(dirfd, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err == unix.ENOENT {
		return nil
	}
	if err != nil {
		return err
	}
	dir := os.NewFile(uintptr(fd), name)
	defer dir.Close()
	for {
		// Removing while reading may skip entries on some file systems, so
		// the directory is read from its start until it is empty.
		names, err := dir.Readdirnames(1024)
		for _, n := range names {
			if err := removeAllAt(fd, n); err != nil {
				return err
			}
		}
		if len(names) == 0 {
			if err != nil && !errors.Is(err, io.EOF) {
				return err
			}
			break
		}
		if _, err := dir.Seek(0, 0); err != nil {
			return err
		}
	}
	err = unix.Unlinkat(dirfd, name, unix.AT_REMOVEDIR)
	if err == unix.ENOENT {
		return nil
	}
	return err
}

// Package mounts looks for mounts at known places, and detaches them.
package mounts

import (
	"errors"
	"fmt"
	"io/fs"

	"golang.org/x/sys/unix"
)

// Detach detaches what is mounted at path; nothing there is fine.
func Detach(path string) error {
	err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("unmount %s: %w", path, err)
	}
	return nil
}

// First returns the first of the paths where something is mounted, or "".
func First(paths []string) (string, error) {
	for _, path := range paths {
		var st unix.Statx_t
		err := unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT, 0, &st)
		switch {
		case errors.Is(err, unix.ENOENT):
		case err != nil:
			return "", &fs.PathError{Op: "statx", Path: path, Err: err}
		case st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0: // Linux 5.8
			return path, nil
		}
	}
	return "", nil
}

package nspin

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Root makes dir a directory that holds mount points and nothing else (see the
// package comment): a mount of its own, private and unbindable. It makes dir if
// missing and does nothing if it is such a mount already.
func Root(dir string) error {
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return fmt.Errorf("mount root: %w", err)
	}
	mounted, err := isMountRoot(dir)
	if err != nil {
		return err
	}
	if !mounted {
		if err := unix.Mount(dir, dir, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("mount root %s: bind on itself: %w", dir, err)
		}
	}
	// Unbindable implies private. Repeating it after a crash in between is harmless.
	if err := unix.Mount("", dir, "", unix.MS_UNBINDABLE, ""); err != nil {
		return fmt.Errorf("mount root %s: make unbindable: %w", dir, err)
	}
	return nil
}

// RemoveRoot undoes Root and removes dir if it is empty. It succeeds if there is
// nothing to undo.
func RemoveRoot(dir string) error {
	for {
		mounted, err := isMountRoot(dir)
		if errors.Is(err, unix.ENOENT) {
			return nil
		}
		if err != nil {
			return err
		}
		if !mounted {
			break
		}
		if err := unix.Unmount(dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			return fmt.Errorf("mount root %s: unmount: %w", dir, err)
		}
	}
	switch err := unix.Rmdir(dir); err {
	case nil, unix.ENOENT, unix.ENOTEMPTY, unix.EEXIST:
		return nil
	default:
		return fmt.Errorf("mount root %s: remove: %w", dir, err)
	}
}

func isMountRoot(dir string) (bool, error) {
	var stx unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, dir, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_BASIC_STATS, &stx); err != nil {
		return false, fmt.Errorf("mount root %s: %w", dir, err)
	}
	if stx.Attributes_mask&unix.STATX_ATTR_MOUNT_ROOT == 0 {
		return false, fmt.Errorf("mount root %s: kernel too old: statx does not tell mount points (needs 5.8)", dir)
	}
	return stx.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0, nil
}

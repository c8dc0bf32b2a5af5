package driver

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Probe makes, uses and drops a small snapshot: overlayfs only warns in the
// kernel's log where a file system cannot hold its whiteouts and xattrs, and then
// does not hide what layers delete.
func (d *overlayfs) Probe(dir string) error {
	api, err := findMountAPI()
	if err != nil {
		return err
	}
	d.api = api
	return d.try(dir)
}

// try deletes a file of a lower directory through an overlay, and looks at what is left.
func (d *overlayfs) try(dir string) error {
	lower, upper, work := filepath.Join(dir, "lower"), filepath.Join(dir, "upper"), filepath.Join(dir, "work")
	for _, path := range []string{lower, upper, work} {
		if err := os.Mkdir(path, 0o700); err != nil {
			return err
		}
	}
	if err := os.WriteFile(filepath.Join(lower, "file"), nil, 0o600); err != nil {
		return err
	}
	if err := unix.Mknod(filepath.Join(lower, "whiteout"), unix.S_IFCHR, 0); err != nil {
		return fmt.Errorf("make a whiteout: %w", err)
	}
	if err := unix.Setxattr(lower, "trusted.overlay.opaque", []byte("y"), 0); err != nil {
		return fmt.Errorf("set xattr trusted.overlay.opaque: %w", err)
	}
	if err := d.deleteThrough(overlay{lower: []string{lower}, upper: upper, work: work}, dir); err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Stat(filepath.Join(upper, "file"), &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFCHR {
		return errors.New("deleting a lower file leaves no whiteout")
	}
	return nil
}

// deleteThrough deletes a lower file through the overlay, which it does not leave
// mounted.
func (d *overlayfs) deleteThrough(o overlay, dir string) error {
	if d.api == oneByOne {
		fd, err := o.detached()
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return deleteLower(fd)
	}
	target := filepath.Join(dir, "target")
	if err := os.Mkdir(target, 0o700); err != nil {
		return err
	}
	if err := o.mount(Rootfs{Target: target}, d.api); err != nil {
		return err
	}
	fd, err := unix.Open(target, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err == nil {
		defer unix.Close(fd)
		err = deleteLower(fd)
	}
	return errors.Join(err, unmountOverlay(target))
}

func deleteLower(root int) error {
	if err := unix.Unlinkat(root, "file", 0); err != nil {
		return fmt.Errorf("delete a lower file: %w", err)
	}
	return nil
}

// FSType names the file system that path is on, as far as known.
func FSType(path string) string {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return "unknown"
	}
	names := map[int64]string{
		unix.OVERLAYFS_SUPER_MAGIC: "overlay",
		unix.NFS_SUPER_MAGIC:       "nfs",
		unix.FUSE_SUPER_MAGIC:      "fuse",
		unix.V9FS_MAGIC:            "9p",
		unix.MSDOS_SUPER_MAGIC:     "vfat",
		unix.CIFS_SUPER_MAGIC:      "cifs",
		unix.EXT4_SUPER_MAGIC:      "ext4",
		unix.XFS_SUPER_MAGIC:       "xfs",
		unix.BTRFS_SUPER_MAGIC:     "btrfs",
		unix.TMPFS_MAGIC:           "tmpfs",
	}
	if n, ok := names[int64(st.Type)]; ok {
		return n
	}
	return fmt.Sprintf("%#x", st.Type)
}

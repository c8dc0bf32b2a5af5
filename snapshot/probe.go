package snapshot

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// dropProbes unmounts what a probe has left mounted whose process was killed; its directory
// could not be deleted.
func (s *Store) dropProbes() error {
	staging, err := filepath.EvalSymlinks(s.stagingDir())
	if err != nil {
		return fmt.Errorf("snapshot store: %w", err)
	}
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(staging))
	if err != nil {
		return fmt.Errorf("read mounts: %w", err)
	}
	for _, m := range slices.Backward(mounts) { // what is mounted on another one first
		if m.Mountpoint == staging {
			continue
		}
		if err := unix.Unmount(m.Mountpoint, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil && err != unix.EINVAL {
			return fmt.Errorf("unmount %s: %w", m.Mountpoint, err)
		}
	}
	return nil
}

// probe has the driver try whether it can work here.
func (s *Store) probe() error {
	dir := filepath.Join(s.stagingDir(), newName())
	err := os.Mkdir(dir, 0o700)
	if err == nil {
		err = s.driver.probe(dir)
	}
	err = errors.Join(err, os.RemoveAll(dir))
	if err != nil {
		return fmt.Errorf("%w: %s on a file system of type %s: %w; put it on ext4, xfs, btrfs or tmpfs, or set snapshot.driver to native",
			ErrUnsupported, s.root, fsType(s.root), err)
	}
	return nil
}

// probe makes, uses and drops a small snapshot: overlayfs only warns in the
// kernel's log where a file system cannot hold its whiteouts and xattrs, and then
// does not hide what layers delete.
func (d *overlayDriver) probe(dir string) error {
	api, err := findMountAPI()
	if err != nil {
		return err
	}
	d.api = api
	return d.tryOverlay(dir)
}

func (d *overlayDriver) tryOverlay(dir string) error {
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
func (d *overlayDriver) deleteThrough(o overlay, dir string) error {
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
	if err := o.mount(rootfs{target: target}, d.api); err != nil {
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

// fsType names the file system that path is on, as far as known.
func fsType(path string) string {
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

// ProbeUsers tries whether a root can show the ids of a user namespace: the kernel, the file
// system and the driver all have to be able. ErrUnsupported, and why, if not. Nothing is
// left, and nothing is recorded.
func (s *Store) ProbeUsers(ctx context.Context) (err error) {
	dir := filepath.Join(s.stagingDir(), newName())
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	r := rootfs{dir: dir, target: filepath.Join(dir, "target")}
	for _, path := range []string{r.dir, r.target} {
		if err := os.Mkdir(path, 0o700); err != nil {
			return fmt.Errorf("probe user namespaces: %w", err)
		}
	}
	r.ids = Users{UIDs: []IDMap{{Host: 1 << 16, Length: 1 << 16}}, GIDs: []IDMap{{Host: 1 << 16, Length: 1 << 16}}}
	if r.users, err = r.ids.open(); err != nil {
		return fmt.Errorf("%w: %w", ErrUnsupported, err)
	}
	defer r.users.Close()
	if err := s.driver.mount(ctx, r); err != nil {
		return fmt.Errorf("%w: %w", ErrUnsupported, err)
	}
	return s.driver.unmount(r.target)
}

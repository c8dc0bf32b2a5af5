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

	"github.com/coracle-project/coracle/snapshot/driver"
	"github.com/coracle-project/coracle/snapshot/trash"
)

// prober tries what the kernel, the file system and the driver can do here.
type prober struct {
	paths
	driver driver.Driver
}

// dropAll unmounts what a probe has left mounted whose process was killed; its directory
// could not be deleted.
func (p prober) dropAll() error {
	staging, err := filepath.EvalSymlinks(p.stagingDir())
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

// roots has the driver try whether it can work here.
func (p prober) roots() error {
	dir := filepath.Join(p.stagingDir(), trash.NewName())
	err := os.Mkdir(dir, 0o700)
	if err == nil {
		err = p.driver.Probe(dir)
	}
	err = errors.Join(err, os.RemoveAll(dir))
	if err != nil {
		return fmt.Errorf("%w: %s on a file system of type %s: %w; put it on ext4, xfs, btrfs or tmpfs, or set snapshot.driver to native",
			ErrUnsupported, p.paths, driver.FSType(string(p.paths)), err)
	}
	return nil
}

// ProbeUsers tries whether a root can show the ids of a user namespace: the kernel, the file
// system and the driver all have to be able. ErrUnsupported, and why, if not. Nothing is
// left, and nothing is recorded.
func (s *Store) ProbeUsers(ctx context.Context) error {
	return prober{paths: s.paths, driver: s.driver}.users(ctx)
}

// users is ProbeUsers.
func (p prober) users(ctx context.Context) (err error) {
	dir := filepath.Join(p.stagingDir(), trash.NewName())
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	r := driver.Rootfs{Dir: dir, Target: filepath.Join(dir, "target")}
	for _, path := range []string{r.Dir, r.Target} {
		if err := os.Mkdir(path, 0o700); err != nil {
			return fmt.Errorf("probe user namespaces: %w", err)
		}
	}
	r.IDs = Users{UIDs: []IDMap{{Host: 1 << 16, Length: 1 << 16}}, GIDs: []IDMap{{Host: 1 << 16, Length: 1 << 16}}}
	if r.Users, err = r.IDs.Open(); err != nil {
		return fmt.Errorf("%w: %w", ErrUnsupported, err)
	}
	defer r.Users.Close()
	if err := p.driver.Mount(ctx, r); err != nil {
		return fmt.Errorf("%w: %w", ErrUnsupported, err)
	}
	return p.driver.Unmount(r.Target)
}

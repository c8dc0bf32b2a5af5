package driver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/snapshot/diff"
)

// nativeDriver copies the layers for each root, and binds the copy to its target. It needs
// nothing of the file system but owners and modes, and extended attributes only for images
// that have some.
type nativeDriver struct{ root string } // the store's

func (nativeDriver) Markers() Markers { return FileMarkers }

func (nativeDriver) Seal(context.Context, string) error { return nil }

func (nativeDriver) View(_ context.Context, dir string) (string, error) { return FilesIn(dir), nil }

func (nativeDriver) Free(string) error { return nil }

// Probe wants what is more than reading and writing: a bind mount.
func (nativeDriver) Probe(dir string) error {
	fd, err := mappedClone(dir, nil)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

// Mount copies next to the final name first: what is called fs is whole.
func (d nativeDriver) Mount(ctx context.Context, r Rootfs) error {
	part := filepath.Join(r.Dir, "part")
	if err := os.RemoveAll(part); err != nil {
		return err
	}
	if err := os.Mkdir(part, 0o755); err != nil {
		return err
	}
	if err := diff.CopyLayers(ctx, r.Layers, d.top(r), part); err != nil {
		return err
	}
	if err := os.Rename(part, r.upper()); err != nil {
		return err
	}
	fd, err := mappedClone(r.upper(), r.Users)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return attach(fd, r)
}

// top is the directory that the root starts with.
func (d nativeDriver) top(r Rootfs) string {
	if n := len(r.Layers); n > 0 {
		return FilesIn(r.Layers[n-1])
	}
	return filepath.Join(d.root, EmptyDir)
}

func (nativeDriver) Unmount(target string) error {
	root, err := IsMountRoot(target)
	if err != nil || !root {
		return err
	}
	if err := unix.Unmount(target, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
		return fmt.Errorf("unmount %s: %w", target, err)
	}
	return nil
}

// IsMountRoot says whether something is mounted at path; nothing there is nothing mounted.
func IsMountRoot(path string) (bool, error) {
	var stx unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_BASIC_STATS, &stx)
	if err == unix.ENOENT || err == unix.ENOTDIR {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("statx %s: %w", path, err)
	}
	return stx.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0, nil
}

// Mounts finds bind mounts by the end of the path that they show of their file system, and
// then by the directory itself.
func (nativeDriver) Mounts(snapshots string) (map[string][]string, error) {
	found := map[string][]string{}
	_, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) {
		dir, ok := strings.CutSuffix(m.Root, "/"+diff.FilesDir)
		if !ok || filepath.Base(filepath.Dir(dir)) != filepath.Base(snapshots) {
			return true, false
		}
		id := filepath.Base(dir)
		if sameDirectory(m.Mountpoint, FilesIn(filepath.Join(snapshots, id))) {
			found[id] = append(found[id], m.Mountpoint)
		}
		return true, false
	})
	if err != nil {
		return nil, fmt.Errorf("read mounts: %w", err)
	}
	return found, nil
}

func sameDirectory(a, b string) bool {
	var x, y unix.Stat_t
	return unix.Lstat(a, &x) == nil && unix.Lstat(b, &y) == nil && diff.InodeOf(&x) == diff.InodeOf(&y)
}

// Untouched cannot tell a copy that was written to from one that was not: only a copy that
// never became whole is.
func (nativeDriver) Untouched(r Rootfs) (bool, error) {
	_, err := os.Lstat(r.upper())
	if errors.Is(err, os.ErrNotExist) {
		return true, nil
	}
	return false, err
}

// Changes compares the copy with the layers.
func (d nativeDriver) Changes(ctx context.Context, r Rootfs, to *diff.Writer) error {
	return to.Compared(ctx, r.upper(), d.top(r), r.Layers)
}

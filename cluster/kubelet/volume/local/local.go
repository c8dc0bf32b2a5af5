// Package local mounts PersistentVolumes that are directories and devices of this node.
package local

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/cluster/kubelet/volume/fsgroup"
	"github.com/coracle-project/coracle/cluster/kubelet/volume/mountpoint"
	"github.com/coracle-project/coracle/cluster/kubelet/volume/source"
)

// readyFile in a volume's state says that it was mounted and given to the pod's group: from then on
// it is left alone.
const readyFile = "ready"

// Volumes mounts directories and devices of this node.
type Volumes struct {
	// Private is the directory of volumes that this cluster has provisioned: paths below it never
	// lead through a link. "" for none.
	Private string
	// Log gets warnings.
	Log *slog.Logger
}

func (Volumes) Plugin() string { return "kubernetes.io~local-volume" }

func (Volumes) Relabels(*source.Spec) bool { return true }

func (Volumes) Serves(v *source.Spec) bool { return v.PV != nil && v.PV.Spec.Local != nil }

// Mount binds the volume's directory. A pod gets a mount of its own, so that what it may do there
// is its own matter.
func (l Volumes) Mount(ctx context.Context, v *source.Spec) (string, error) {
	path := v.PV.Spec.Local.Path
	if !filepath.IsAbs(path) || slices.Contains(strings.Split(path, "/"), "..") {
		return "", fmt.Errorf("invalid path: %s must be absolute and must not contain '..'", path)
	}
	if len(v.PV.Spec.MountOptions) > 0 {
		return "", fmt.Errorf("mountOptions of local volumes are not served by this kubelet: take them out of persistentvolume %q", v.PV.Name)
	}
	dir, err := l.open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("path %q does not exist on this node", path)
	}
	if err != nil {
		return "", err
	}
	defer unix.Close(dir)
	var info unix.Stat_t
	if err := unix.Fstat(dir, &info); err != nil {
		return "", &os.PathError{Op: "stat", Path: path, Err: err}
	}
	switch kind := info.Mode & unix.S_IFMT; {
	case v.Block && kind != unix.S_IFBLK:
		return "", fmt.Errorf("path %q is no block device, but the volume has volumeMode Block", path)
	case v.Block:
		return filepath.EvalSymlinks(path)
	case kind == unix.S_IFBLK:
		return "", fmt.Errorf("path %q is a block device, but the volume has volumeMode Filesystem: mount it on a directory and name that one",
			path)
	case kind != unix.S_IFDIR:
		return "", fmt.Errorf("path %q is no directory", path)
	}
	return v.Dir, l.bind(ctx, dir, v)
}

// open opens the volume's path. The administrator's own paths may lead through links.
func (l Volumes) open(path string) (int, error) {
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC}
	base, below := "/", path
	if rest, ok := strings.CutPrefix(filepath.Clean(path), l.Private+"/"); ok && l.Private != "" {
		base, below = l.Private, rest
		how.Resolve = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS
	}
	root, err := unix.Open(base, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, &os.PathError{Op: "open", Path: base, Err: err}
	}
	defer unix.Close(root)
	fd, err := unix.Openat2(root, below, &how)
	if errors.Is(err, unix.ELOOP) && how.Resolve != 0 {
		return -1, fmt.Errorf("path %q leads through a symbolic link, which a volume of this cluster never is: put its directory back", path)
	}
	if err != nil {
		return -1, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return fd, nil
}

func (l Volumes) bind(ctx context.Context, dir int, v *source.Spec) error {
	ready := filepath.Join(v.State, readyFile)
	if _, err := os.Lstat(ready); err == nil && mountpoint.Shows(v.Dir, dir) {
		return nil
	}
	if err := mountpoint.Bind(ctx, dir, v.Dir); err != nil {
		return err
	}
	if !v.ReadOnly {
		if err := fsgroup.Give(ctx, v.Dir, v.Pod, l.Log); err != nil {
			return err
		}
	}
	return os.WriteFile(ready, nil, 0o640)
}

// Unmount has nothing to do but what is done for all.
func (Volumes) Unmount(context.Context, source.Mounted) error { return nil }

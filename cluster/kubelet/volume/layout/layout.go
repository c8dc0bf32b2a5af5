// Package layout says where pods' volumes are below the kubelet's directory. It is upstream's
// layout, and the only record of what is mounted: what is there is found again after a restart.
package layout

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coracle-project/coracle/cluster/internal/rmtree"
)

// Names of upstream's volume plugins, as its layout has them in directory names.
const (
	PluginEmptyDir    = "kubernetes.io~empty-dir"
	PluginConfigMap   = "kubernetes.io~configmap"
	PluginSecret      = "kubernetes.io~secret"
	PluginDownwardAPI = "kubernetes.io~downward-api"
	PluginProjected   = "kubernetes.io~projected"
)

// OpenDir opens a directory of our own, which must not be a link.
const OpenDir = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC

// Directories of one pod that belong to its volumes.
const (
	VolumesDir  = "volumes"
	SubPathsDir = "volume-subpaths"
	PluginsDir  = "plugins"
)

// Dirs are the directories of pods below the kubelet's directory.
type Dirs struct {
	// Root is the kubelet's directory ("/var/lib/kubelet").
	Root string
}

// Pods is the directory of all pods.
func (d Dirs) Pods() string { return filepath.Join(d.Root, "pods") }

// Pod is the directory of one pod.
func (d Dirs) Pod(uid types.UID) string { return filepath.Join(d.Pods(), string(uid)) }

// Volume returns where a volume is made, or "" if it is not made below the pod's directory.
func (d Dirs) Volume(uid types.UID, vol *v1.Volume) string {
	plugin := PluginOf(vol)
	if plugin == "" {
		return ""
	}
	return filepath.Join(d.Pod(uid), VolumesDir, plugin, vol.Name)
}

// PluginOf is the name of the plugin that makes the volume, "" for volumes that are not made below
// the pod's directory, and for those of Sources.
func PluginOf(vol *v1.Volume) string {
	switch {
	case vol.EmptyDir != nil:
		return PluginEmptyDir
	case vol.ConfigMap != nil:
		return PluginConfigMap
	case vol.Secret != nil:
		return PluginSecret
	case vol.DownwardAPI != nil:
		return PluginDownwardAPI
	case vol.Projected != nil:
		return PluginProjected
	}
	return ""
}

// EmptyDir returns where the pod's emptyDir volume of that name is.
func (d Dirs) EmptyDir(uid types.UID, name string) string {
	return filepath.Join(d.Pod(uid), VolumesDir, PluginEmptyDir, name)
}

// PlainNames refuses what is no plain file name, since UIDs and names become such. The API refuses
// it too, but not all pods come from there.
func PlainNames(names ...string) error {
	for _, s := range names {
		if s == "" || s == "." || s == ".." || strings.ContainsAny(s, "/\x00") {
			return fmt.Errorf("%q is not usable as a directory's name", s)
		}
	}
	return nil
}

// CheckUID refuses a pod's UID that cannot be a directory's name.
func CheckUID(uid types.UID) error {
	if err := PlainNames(string(uid)); err != nil {
		return fmt.Errorf("pod UID: %w", err)
	}
	return nil
}

// FullName is how people know a pod.
func FullName(pod *v1.Pod) string { return pod.Namespace + "/" + pod.Name }

// MakePod makes the pod's directories, for root alone: volumes have what containers write.
func (d Dirs) MakePod(uid types.UID) error {
	return os.MkdirAll(filepath.Join(d.Pod(uid), VolumesDir), 0o700)
}

// MakeVolume makes a volume's directory, which every user of the pod may use.
func MakeVolume(dir string) error {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return err
	}
	info, err := os.Lstat(dir)
	if err != nil || info.Mode().Perm() == 0o777 {
		return err
	}
	return os.Chmod(dir, info.Mode()|0o777)
}

// RemoveSubPaths takes away the mounts of the pod's subPaths: they pin what they show.
func (d Dirs) RemoveSubPaths(ctx context.Context, uid types.UID) error {
	return d.remove(ctx, uid, SubPathsDir)
}

// RemoveAll takes away all of the pod's volumes, and what is mounted there.
func (d Dirs) RemoveAll(ctx context.Context, uid types.UID) error {
	// The record of what the pod has goes when it has nothing.
	return d.remove(ctx, uid, SubPathsDir, VolumesDir, PluginsDir)
}

// remove takes away directories of the pod, the plugins' one only if the others have gone.
func (d Dirs) remove(ctx context.Context, uid types.UID, dirs ...string) error {
	pod, err := os.OpenFile(d.Pod(uid), OpenDir, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer pod.Close()
	var errs []error
	for _, dir := range dirs {
		if dir == PluginsDir && len(errs) > 0 {
			break
		}
		if err := rmtree.At(ctx, int(pod.Fd()), dir); err != nil {
			errs = append(errs, fmt.Errorf("removing %s: %w", filepath.Join(d.Pod(uid), dir), err))
		}
	}
	return errors.Join(errs...)
}

// OnDisk returns the UIDs of the pods that have a directory, for the clean-up after pods that went
// away while the kubelet did not run.
func (d Dirs) OnDisk() ([]types.UID, error) {
	entries, err := os.ReadDir(d.Pods())
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var uids []types.UID
	for _, e := range entries {
		if e.IsDir() {
			uids = append(uids, types.UID(e.Name()))
		}
	}
	return uids, nil
}

// ReadFile reads a regular file of at most limit bytes. It waits for nothing and follows no link,
// whatever is there.
func ReadFile(path string, limit int64) ([]byte, error) {
	f, _, err := openRegular(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	content, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(content)) > limit {
		err = &os.PathError{Op: "read", Path: path, Err: fmt.Errorf("more than %d bytes", limit)}
	}
	if err != nil {
		return nil, err
	}
	return content, nil
}

// ReadEnd reads the last bytes of a regular file, at most limit of them. Like ReadFile, it waits
// for nothing and follows no link.
func ReadEnd(path string, limit int64) ([]byte, error) {
	f, size, err := openRegular(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.NewSectionReader(f, max(0, size-limit), limit))
}

// openRegular opens a regular file, and returns its size.
func openRegular(path string) (f *os.File, size int64, err error) {
	f, err = os.OpenFile(path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, 0, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = &os.PathError{Op: "read", Path: path, Err: errors.New("not a regular file")}
	}
	if err != nil {
		f.Close()
		return nil, 0, err
	}
	return f, info.Size(), nil
}

// Directories are the names of those in dir, which need not be there, nor be a directory.
func Directories(dir string) (names []string, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTDIR) {
		return nil, err
	}
	for _, e := range entries {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

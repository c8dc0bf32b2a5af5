package volume

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"

	"github.com/coracle-project/coracle/cluster/internal/rmtree"
)

// Names of upstream's volume plugins, as its layout has them in directory names.
const (
	pluginEmptyDir    = "kubernetes.io~empty-dir"
	pluginConfigMap   = "kubernetes.io~configmap"
	pluginSecret      = "kubernetes.io~secret"
	pluginDownwardAPI = "kubernetes.io~downward-api"
	pluginProjected   = "kubernetes.io~projected"
)

// Directories of one pod that belong to its volumes.
const (
	volumesDir  = "volumes"
	subPathsDir = "volume-subpaths"
	pluginsDir  = "plugins"
)

func (m *Manager) podsDir() string { return filepath.Join(m.opts.RootDir, "pods") }

func (m *Manager) podDir(uid types.UID) string { return filepath.Join(m.podsDir(), string(uid)) }

// dirOf returns where a volume is made, or "" if it is not made below the pod's directory.
func (m *Manager) dirOf(uid types.UID, vol *v1.Volume) string {
	plugin := pluginOf(vol)
	if plugin == "" {
		return ""
	}
	return filepath.Join(m.podDir(uid), volumesDir, plugin, vol.Name)
}

func pluginOf(vol *v1.Volume) string {
	switch {
	case vol.EmptyDir != nil:
		return pluginEmptyDir
	case vol.ConfigMap != nil:
		return pluginConfigMap
	case vol.Secret != nil:
		return pluginSecret
	case vol.DownwardAPI != nil:
		return pluginDownwardAPI
	case vol.Projected != nil:
		return pluginProjected
	}
	return ""
}

// EmptyDir returns where the emptyDir volume of that name is, for those who read from one.
func EmptyDir(rootDir string, uid types.UID, name string) string {
	return filepath.Join(rootDir, "pods", string(uid), volumesDir, pluginEmptyDir, name)
}

// plainNames refuses what is no plain file name, since UIDs and names become such. The API refuses
// it too, but not all pods come from there.
func plainNames(names ...string) error {
	for _, s := range names {
		if s == "" || s == "." || s == ".." || strings.ContainsAny(s, "/\x00") {
			return fmt.Errorf("%q is not usable as a directory's name", s)
		}
	}
	return nil
}

func checkUID(uid types.UID) error {
	if err := plainNames(string(uid)); err != nil {
		return fmt.Errorf("pod UID: %w", err)
	}
	return nil
}

// makePodDirs makes the pod's directories, for root alone: volumes have what containers write.
func (m *Manager) makePodDirs(uid types.UID) error {
	return os.MkdirAll(filepath.Join(m.podDir(uid), volumesDir), 0o700)
}

// removeSubPaths takes away the mounts of the pod's subPaths: they pin what they show.
func (m *Manager) removeSubPaths(ctx context.Context, uid types.UID) error {
	return m.remove(ctx, uid, subPathsDir)
}

// removeAll takes away all that Mount and Mounts made for the pod.
func (m *Manager) removeAll(ctx context.Context, uid types.UID) error {
	// The record of what the pod has goes when it has nothing.
	return m.remove(ctx, uid, subPathsDir, volumesDir, pluginsDir)
}

// remove takes away directories of the pod, the plugins' one only if the others have gone.
func (m *Manager) remove(ctx context.Context, uid types.UID, dirs ...string) error {
	pod, err := os.OpenFile(m.podDir(uid), openDir, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer pod.Close()
	var errs []error
	for _, dir := range dirs {
		if dir == pluginsDir && len(errs) > 0 {
			break
		}
		if err := rmtree.At(ctx, int(pod.Fd()), dir); err != nil {
			errs = append(errs, fmt.Errorf("removing %s: %w", filepath.Join(m.podDir(uid), dir), err))
		}
	}
	return errors.Join(errs...)
}

// OnDisk returns the UIDs of the pods that have a directory, for the clean-up after pods that went
// away while the kubelet did not run.
func (m *Manager) OnDisk() ([]types.UID, error) {
	entries, err := os.ReadDir(m.podsDir())
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

// usedVolumes are the names of volumes that some container mounts or reads its environment from;
// upstream makes no others.
func usedVolumes(pod *v1.Pod) sets.Set[string] {
	used := sets.New[string]()
	podutil.VisitContainers(&pod.Spec, podutil.AllContainers, func(c *v1.Container, _ podutil.ContainerType) bool {
		for i := range c.VolumeMounts {
			used.Insert(c.VolumeMounts[i].Name)
		}
		for i := range c.VolumeDevices {
			used.Insert(c.VolumeDevices[i].Name)
		}
		for i := range c.Env {
			if from := c.Env[i].ValueFrom; from != nil && from.FileKeyRef != nil {
				used.Insert(from.FileKeyRef.VolumeName)
			}
		}
		return true
	})
	return used
}

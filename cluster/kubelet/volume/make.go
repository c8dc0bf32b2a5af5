package volume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"

	"github.com/coracle-project/coracle/cluster/internal/rmtree"
	"github.com/coracle-project/coracle/cluster/kubelet/volume/fsgroup"
	"github.com/coracle-project/coracle/cluster/kubelet/volume/hostpath"
	"github.com/coracle-project/coracle/cluster/kubelet/volume/layout"
	"github.com/coracle-project/coracle/cluster/kubelet/volume/mountpoint"
)

// make brings one volume to where it should be.
func (m *Manager) make(ctx context.Context, p *podVolumes, vol *v1.Volume) error {
	if err := layout.PlainNames(vol.Name); err != nil {
		return fmt.Errorf("volume name: %w", err)
	}
	switch {
	case vol.EmptyDir != nil:
		return m.makeEmptyDir(ctx, p.pod, vol)
	case vol.HostPath != nil:
		return hostpath.Check(hostpath.Real(vol.HostPath, m.opts.Alias, m.opts.RootDir))
	case vol.Image != nil:
		return nil // the runtime mounts it
	case isProjection(vol):
		return m.makeProjection(ctx, p, vol)
	case isPersistent(vol):
		return m.makePersistent(ctx, p, vol)
	}
	return errNotServed(vol)
}

func errNotServed(vol *v1.Volume) error {
	return fmt.Errorf(
		"the volume is a %s, which this kubelet cannot mount: use configMap, downwardAPI, emptyDir, ephemeral, hostPath, image, nfs, "+
			"persistentVolumeClaim, projected or secret", sourceName(vol),
	)
}

// isProjection says whether the volume's files come from the API and so may change.
func isProjection(vol *v1.Volume) bool { return vol.EmptyDir == nil && layout.PluginOf(vol) != "" }

// sourceName is how the API calls the source of a volume that is not served.
func sourceName(vol *v1.Volume) string {
	switch {
	case vol.CSI != nil:
		return fmt.Sprintf("csi volume (driver %q)", vol.CSI.Driver)
	case vol.ISCSI != nil:
		return "iscsi volume"
	case vol.GitRepo != nil:
		return "gitRepo volume"
	}
	return "volume of another source"
}

// makeProjection makes or brings up to date a volume whose files come from the API.
func (m *Manager) makeProjection(ctx context.Context, p *podVolumes, vol *v1.Volume) error {
	files, err := m.contents(ctx, p, vol)
	if err != nil {
		return err
	}
	dir := m.dirs.Volume(p.uid, vol)
	fresh, err := m.makeBacking(p.pod, vol, dir)
	if err != nil {
		return err
	}
	err = writeProjection(ctx, p.pod, vol, dir, files)
	if err != nil && fresh {
		// Nothing was there before, so nothing half made stays.
		err = errors.Join(err, rmtree.Path(context.WithoutCancel(ctx), dir))
	}
	return err
}

// makeBacking makes the directory that a projection is written to, on tmpfs if it may hold secrets.
// It reports whether there was none.
func (m *Manager) makeBacking(pod *v1.Pod, vol *v1.Volume, dir string) (fresh bool, err error) {
	_, err = os.Lstat(dir)
	fresh = errors.Is(err, fs.ErrNotExist)
	if err := makeOpenDir(dir); err != nil {
		return false, err
	}
	if vol.ConfigMap != nil {
		return fresh, nil
	}
	return fresh, mountpoint.Tmpfs(dir, m.memoryLimit(pod, nil))
}

func writeProjection(ctx context.Context, pod *v1.Pod, vol *v1.Volume, dir string, files map[string]file) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	nested, err := nestedMountPoints(pod, vol.Name)
	if err != nil {
		return err
	}
	for _, name := range nested {
		if err := root.MkdirAll(name, 0o755); err != nil {
			return fmt.Errorf("unable to create nested volume mountpoints: %w", err)
		}
	}
	_, err = writeAtomic(root, files, func() error { return fsgroup.Set(ctx, root, fsgroup.Of(pod), fsgroup.ReadOnly) })
	return err
}

// nestedMountPoints are the paths within the named volume where other volumes are mounted. The
// runtime could not make them itself, since the volume is mounted read-only. Of mount points within
// each other only the outermost counts.
func nestedMountPoints(pod *v1.Pod, name string) ([]string, error) {
	var nested []string
	var refused error
	podutil.VisitContainers(&pod.Spec, podutil.AllContainers, func(c *v1.Container, _ podutil.ContainerType) bool {
		var all []string
		for i := range c.VolumeMounts {
			all = append(all, filepath.Clean(c.VolumeMounts[i].MountPath))
		}
		slices.Sort(all)
		for i := range c.VolumeMounts {
			mine := filepath.Clean(c.VolumeMounts[i].MountPath)
			if c.VolumeMounts[i].Name != name {
				continue
			}
			if strings.HasPrefix(mine, "../") {
				refused = fmt.Errorf("invalid container mount point %v", mine)
				return false
			}
			outer := len(nested)
			for _, other := range all {
				inside, ok := strings.CutPrefix(other, mine+"/")
				within := func(n string) bool { return strings.HasPrefix(inside, n+"/") }
				if ok && !slices.ContainsFunc(nested[outer:], within) {
					nested = append(nested, inside)
				}
			}
		}
		return true
	})
	return nested, refused
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

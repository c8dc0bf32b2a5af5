package volume

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"

	"github.com/coracle-project/coracle/cluster/kubelet/volume/hostpath"
	"github.com/coracle-project/coracle/cluster/kubelet/volume/layout"
	"github.com/coracle-project/coracle/cluster/kubelet/volume/projection"
)

// make brings one volume to where it should be.
func (m *Manager) make(ctx context.Context, p *podVolumes, vol *v1.Volume) error {
	if err := layout.PlainNames(vol.Name); err != nil {
		return fmt.Errorf("volume name: %w", err)
	}
	switch {
	case vol.EmptyDir != nil:
		return m.emptyDirs.Make(ctx, p.pod, vol)
	case vol.HostPath != nil:
		return hostpath.Check(hostpath.Real(vol.HostPath, m.opts.Alias, m.opts.RootDir))
	case vol.Image != nil:
		return nil // the runtime mounts it
	case projection.Is(vol):
		return m.projections.Make(ctx, p.pod, p.held, vol)
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

package volume

import (
	"context"
	"errors"
	"os"

	v1 "k8s.io/api/core/v1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/coracle-project/coracle/cluster/kubelet/volume/layout"
	"github.com/coracle-project/coracle/cluster/kubelet/volume/source"
	"github.com/coracle-project/coracle/cluster/kubelet/volume/usage"
)

// Usage returns what each volume that was made for the pod takes. It looks at every file of those
// that are on disk, so it is for those who ask, and not for every second.
func (m *Manager) Usage(ctx context.Context, pod *v1.Pod) []statsapi.VolumeStats {
	return append(m.OwnUsage(ctx, pod), m.ClaimUsage(ctx, pod)...)
}

// OwnUsage returns what the volumes take that end with the pod. No Source is asked.
func (m *Manager) OwnUsage(ctx context.Context, pod *v1.Pod) []statsapi.VolumeStats {
	var all []statsapi.VolumeStats
	for i := range pod.Spec.Volumes {
		vol := &pod.Spec.Volumes[i]
		if isPersistent(vol) {
			continue
		}
		dir := m.dirs.Volume(pod.UID, vol)
		if dir == "" || layout.CheckUID(pod.UID) != nil {
			continue
		}
		stats, err := usage.Of(ctx, dir)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			m.opts.Log.Debug("usage of a volume is not known", "dir", dir, "err", err)
			continue
		}
		all = append(all, statsapi.VolumeStats{Name: vol.Name, FsStats: *stats})
	}
	return all
}

// ClaimUsage returns what the pod's volumes take whose Sources know it without a look at every
// file.
func (m *Manager) ClaimUsage(ctx context.Context, pod *v1.Pod) (all []statsapi.VolumeStats) {
	for i := range pod.Spec.Volumes {
		if !isPersistent(&pod.Spec.Volumes[i]) {
			continue
		}
		if stats, ok := m.persistentUsage(ctx, pod, &pod.Spec.Volumes[i]); ok {
			all = append(all, stats)
		}
	}
	return all
}

// persistentUsage is what the volume's Source says, or the file system of a local volume. That of
// others is not asked: their server may be gone.
func (m *Manager) persistentUsage(ctx context.Context, pod *v1.Pod, vol *v1.Volume) (statsapi.VolumeStats, bool) {
	p := m.of(pod.UID, false)
	if p == nil {
		return statsapi.VolumeStats{}, false
	}
	at, ok := p.placedOf(vol.Name)
	if measurer, measures := at.source.(source.Measurer); ok && measures {
		stats, known := measurer.Usage(ctx, at.spec)
		stats.Name = vol.Name
		if at.spec.PV != nil && at.spec.PV.Spec.ClaimRef != nil {
			claim := at.spec.PV.Spec.ClaimRef
			stats.PVCRef = &statsapi.PVCReference{Name: claim.Name, Namespace: claim.Namespace}
		}
		return stats, known
	}
	if !ok || at.spec.Block || at.spec.PV == nil || at.spec.PV.Spec.Local == nil {
		return statsapi.VolumeStats{}, false
	}
	figures, err := usage.OfFileSystem(at.path)
	if err != nil {
		return statsapi.VolumeStats{}, false
	}
	claim := at.spec.PV.Spec.ClaimRef
	return statsapi.VolumeStats{
		Name: vol.Name, PVCRef: &statsapi.PVCReference{Name: claim.Name, Namespace: claim.Namespace}, FsStats: *figures,
	}, true
}

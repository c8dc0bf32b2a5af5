package eviction

import (
	"context"

	v1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"
	kubetypes "k8s.io/kubernetes/pkg/kubelet/types"
)

// enforceLimits evicts pods that take more local storage than they may. It looks at the files of
// pods that have a limit, and at no others.
func (m *Manager) enforceLimits(ctx context.Context) {
	for _, p := range m.Pods() {
		storage, volumes := limitsOf(p)
		if !storage && !volumes || kubetypes.IsCriticalPod(p) {
			continue
		}
		u := &usage{}
		if storage {
			uses, err := m.usages(ctx, []*v1.Pod{p}, true)
			if ctx.Err() != nil {
				return
			}
			if err != nil {
				m.Log.Warn("what a pod with limits of local storage takes is not known", "pod", p.Namespace+"/"+p.Name, "err", err)
			}
			if known := uses[p.UID]; known != nil {
				u = known
			}
		}
		if u.volumes == nil {
			u.volumes = m.volumes(ctx, p)
		}
		if why := exceeded(p, u, m.sharedDisk(ctx)); why != "" {
			m.evict(p, why, nil, false)
		}
	}
}

// limitsOf says whether a pod's local storage is limited as a whole, and whether that of its
// volumes is.
func limitsOf(p *v1.Pod) (storage, volumes bool) {
	limits := resourcehelper.PodLimits(p, resourcehelper.PodResourcesOptions{})
	_, storage = limits[v1.ResourceEphemeralStorage]
	for i := range p.Spec.Volumes {
		if e := p.Spec.Volumes[i].EmptyDir; e != nil && e.Medium == v1.StorageMediumDefault && e.SizeLimit != nil && e.SizeLimit.Sign() > 0 {
			volumes = true // one in memory cannot grow beyond its limit
		}
	}
	return storage, volumes
}

// exceeded returns why the pod is evicted, nothing if it is not. shared is set if writable layers
// are on the disk that the limits are about.
func exceeded(p *v1.Pod, u *usage, shared bool) string {
	for i := range p.Spec.Volumes {
		v := &p.Spec.Volumes[i]
		used, known := u.volumes[v.Name]
		if known && v.EmptyDir != nil && v.EmptyDir.SizeLimit != nil && v.EmptyDir.SizeLimit.Sign() > 0 &&
			used.bytes > v.EmptyDir.SizeLimit.Value() {
			return emptyDirMessage(v.Name, v.EmptyDir.SizeLimit)
		}
	}
	limits := resourcehelper.PodLimits(p, resourcehelper.PodResourcesOptions{})
	if limit, ok := limits[v1.ResourceEphemeralStorage]; ok && u.all().bytes > limit.Value() {
		return podLimitMessage(&limit)
	}
	for i := range p.Spec.Containers {
		c := &p.Spec.Containers[i]
		used := u.containers[c.Name].logs.bytes
		if shared {
			used += u.containers[c.Name].rootfs.bytes
		}
		if limit := c.Resources.Limits.StorageEphemeral(); !limit.IsZero() && used > limit.Value() {
			return containerLimitMessage(c.Name, limit)
		}
	}
	return ""
}

package volume

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"
	corev1helper "k8s.io/kubernetes/pkg/apis/core/v1/helper"

	"github.com/coracle-project/coracle/cluster/kubelet/volume/fsgroup"
	"github.com/coracle-project/coracle/cluster/kubelet/volume/layout"
	"github.com/coracle-project/coracle/cluster/kubelet/volume/mountpoint"
)

// makeEmptyDir makes an emptyDir once. The ready file says that it was completed: from then on
// containers may have changed all of it, so it is left alone.
func (m *Manager) makeEmptyDir(ctx context.Context, pod *v1.Pod, vol *v1.Volume) error {
	dir := m.dirs.Volume(pod.UID, vol)
	ready := filepath.Join(m.dirs.Pod(pod.UID), layout.PluginsDir, layout.PluginEmptyDir, vol.Name, "ready")
	medium := vol.EmptyDir.Medium
	if _, err := os.Lstat(ready); err == nil && emptyDirStands(dir, medium) {
		return nil
	}
	if err := makeOpenDir(dir); err != nil {
		return err
	}
	switch {
	case medium == v1.StorageMediumDefault:
	case medium == v1.StorageMediumMemory:
		if err := mountpoint.Tmpfs(dir, m.memoryLimit(pod, vol.EmptyDir.SizeLimit)); err != nil {
			return err
		}
	case corev1helper.IsHugePageMedium(medium):
		size, err := hugePageSize(medium, pod)
		if err != nil {
			return err
		}
		if err := mountpoint.HugePages(dir, size); err != nil {
			return err
		}
	default:
		return fmt.Errorf("unknown storage medium %q", medium)
	}
	if group := fsgroup.Of(pod); group != nil {
		root, err := os.OpenRoot(dir)
		if err != nil {
			return err
		}
		err = fsgroup.Set(ctx, root, group, fsgroup.ReadWrite)
		if err = errors.Join(err, root.Close()); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(filepath.Dir(ready), 0o750); err != nil {
		return err
	}
	return os.WriteFile(ready, nil, 0o640)
}

// emptyDirStands says whether the directory is there, with its memory mounted if it is in memory:
// that is gone after a reboot.
func emptyDirStands(dir string, medium v1.StorageMedium) bool {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return false
	}
	switch {
	case medium == v1.StorageMediumDefault:
		return true
	case medium == v1.StorageMediumMemory:
		return s.Type == unix.TMPFS_MAGIC && mountpoint.Is(dir)
	default:
		return s.Type == unix.HUGETLBFS_MAGIC && mountpoint.Is(dir)
	}
}

// makeOpenDir makes a volume's directory, which every user of the pod may use.
func makeOpenDir(dir string) error {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return err
	}
	info, err := os.Lstat(dir)
	if err != nil || info.Mode().Perm() == 0o777 {
		return err
	}
	return os.Chmod(dir, info.Mode()|0o777)
}

// memoryLimit is how large a tmpfs of the pod may become, in bytes: the least of its own limit, the
// pod's memory and the node's; 0 if none is known.
func (m *Manager) memoryLimit(pod *v1.Pod, limit *resource.Quantity) int64 {
	node := m.allocatable()
	least := node.Memory().Value()
	for _, q := range []*resource.Quantity{podMemoryLimit(pod), limit} {
		if q != nil && q.Sign() > 0 && (least == 0 || q.Value() <= least) {
			least = q.Value()
		}
	}
	return least
}

// podMemoryLimit is the limit of the pod's cgroup: none unless the pod or each container has one.
func podMemoryLimit(pod *v1.Pod) *resource.Quantity {
	if resourcehelper.IsPodLevelLimitsSet(pod) {
		if q, ok := pod.Spec.Resources.Limits[v1.ResourceMemory]; ok {
			return &q
		}
	}
	for _, list := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			if list[i].Resources.Limits.Memory().IsZero() {
				return nil
			}
		}
	}
	limits := resourcehelper.PodLimits(pod, resourcehelper.PodResourcesOptions{})
	return limits.Memory()
}

// hugePageSize is the size of the pages that back the medium: its own, or the only one that the pod
// asks for.
func hugePageSize(medium v1.StorageMedium, pod *v1.Pod) (resource.Quantity, error) {
	var size resource.Quantity
	found := false
	for _, list := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			for name := range list[i].Resources.Requests {
				if !corev1helper.IsHugePageResourceName(name) {
					continue
				}
				page, err := corev1helper.HugePageSizeFromResourceName(name)
				if err != nil {
					return size, err
				}
				if medium != v1.StorageMediumHugePages {
					if want, err := corev1helper.HugePageSizeFromMedium(medium); err != nil {
						return size, err
					} else if want.Cmp(page) != 0 {
						continue
					}
				} else if found && size.Cmp(page) != 0 {
					return size, fmt.Errorf("medium: %s can't be used if container requests multiple huge page sizes", medium)
				}
				size, found = page, true
			}
		}
	}
	if !found {
		return size, fmt.Errorf("medium %s: hugePages storage requested, but there is no resource request for huge pages", medium)
	}
	return size, nil
}

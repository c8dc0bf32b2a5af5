// Package emptydir makes emptyDir volumes.
package emptydir

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	corev1helper "k8s.io/kubernetes/pkg/apis/core/v1/helper"

	"github.com/coracle-project/coracle/cluster/kubelet/volume/fsgroup"
	"github.com/coracle-project/coracle/cluster/kubelet/volume/layout"
	"github.com/coracle-project/coracle/cluster/kubelet/volume/mountpoint"
)

// Maker makes the emptyDir volumes of a node.
type Maker struct {
	Dirs layout.Dirs
	// Allocatable returns what the node can give to pods, nil if that is not known.
	Allocatable func() v1.ResourceList
}

// Make makes an emptyDir once. The ready file says that it was completed: from then on
// containers may have changed all of it, so it is left alone.
func (m Maker) Make(ctx context.Context, pod *v1.Pod, vol *v1.Volume) error {
	dir := m.Dirs.Volume(pod.UID, vol)
	ready := filepath.Join(m.Dirs.Pod(pod.UID), layout.PluginsDir, layout.PluginEmptyDir, vol.Name, "ready")
	medium := vol.EmptyDir.Medium
	if _, err := os.Lstat(ready); err == nil && stands(dir, medium) {
		return nil
	}
	if err := layout.MakeVolume(dir); err != nil {
		return err
	}
	switch {
	case medium == v1.StorageMediumDefault:
	case medium == v1.StorageMediumMemory:
		if err := mountpoint.Tmpfs(dir, mountpoint.MemoryLimit(m.Allocatable(), pod, vol.EmptyDir.SizeLimit)); err != nil {
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

// stands says whether the directory is there, with its memory mounted if it is in memory:
// that is gone after a reboot.
func stands(dir string, medium v1.StorageMedium) bool {
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

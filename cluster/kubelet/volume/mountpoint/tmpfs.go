package mountpoint

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"
)

// Tmpfs mounts a tmpfs of at most size bytes (0: half of the machine's memory) on dir, unless
// one is mounted there. What is in it is never swapped out where the kernel can promise that (6.4
// and newer).
func Tmpfs(dir string, size int64) error {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return &os.PathError{Op: "statfs", Path: dir, Err: err}
	}
	if s.Type == unix.TMPFS_MAGIC && Is(dir) {
		return nil
	}
	var options string
	if size > 0 {
		options = ",size=" + strconv.FormatInt(size, 10)
	}
	err := unix.Mount("tmpfs", dir, "tmpfs", 0, "noswap"+options)
	if errors.Is(err, unix.EINVAL) {
		err = unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=1777"+options)
	}
	if err != nil {
		return &os.PathError{Op: "mount tmpfs", Path: dir, Err: err}
	}
	return nil
}

// HugePages mounts a hugetlbfs of pages of that size on dir, unless something is mounted there.
func HugePages(dir string, page resource.Quantity) error {
	if Is(dir) {
		return nil
	}
	if err := unix.Mount("nodev", dir, "hugetlbfs", 0, fmt.Sprintf("pagesize=%d", page.Value())); err != nil {
		return &os.PathError{Op: "mount hugetlbfs", Path: dir, Err: err}
	}
	return nil
}

// Is says whether something is mounted on path (Linux 5.8 and newer tell it directly).
func Is(path string) bool {
	var s unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT, 0, &s)
	return err == nil && s.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0
}

// MemoryLimit is how large a tmpfs of the pod may become, in bytes: the least of its own limit, the
// pod's memory and the node's; 0 if none is known. node is what the node can give to pods.
func MemoryLimit(node v1.ResourceList, pod *v1.Pod, limit *resource.Quantity) int64 {
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

package eviction

import (
	"context"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	kubelettypes "k8s.io/kubelet/pkg/types"
)

// space is what something takes on a disk.
type space struct{ bytes, inodes int64 }

func (s *space) add(o space) {
	s.bytes += o.bytes
	s.inodes += o.inodes
}

// usage is what a pod takes.
type usage struct {
	memory     int64
	containers map[string]containerUsage
	// volumes are those on disk, by name.
	volumes map[string]space
	files   space // the hosts file and containers' last words
}

type containerUsage struct {
	memory       int64
	rootfs, logs space
}

// on sums up what the pod takes on the disk that a signal is about.
func (u *usage) on(s signal, shared bool) (sum space) {
	for _, c := range u.containers {
		if shared || s.images {
			sum.add(c.rootfs)
		}
		if shared || !s.images {
			sum.add(c.logs)
		}
	}
	if shared || !s.images {
		for _, v := range u.volumes {
			sum.add(v)
		}
		sum.add(u.files)
	}
	return sum
}

// all is everything that counts as the pod's ephemeral storage.
func (u *usage) all() space { return u.on(signal{}, true) }

// statsTimeout is how long the runtime may take for statistics: evictions wait for them.
const statsTimeout = time.Minute

// usages returns what pods take of memory and, if that is asked for, of disks. A pod that the
// runtime does not know of is left out.
func (m *Manager) usages(ctx context.Context, pods []*v1.Pod, disks bool) (map[types.UID]*usage, error) {
	filter := &runtimeapi.ContainerStatsFilter{}
	if len(pods) == 1 {
		filter.LabelSelector = map[string]string{kubelettypes.KubernetesPodUIDLabel: string(pods[0].UID)}
	}
	ctx, cancel := context.WithTimeout(ctx, statsTimeout)
	defer cancel()
	answer, err := m.Runtime.Runtime.ListContainerStats(ctx, &runtimeapi.ListContainerStatsRequest{Filter: filter})
	if err != nil {
		return nil, fmt.Errorf("statistics of containers: %w", err)
	}
	all := map[types.UID]*usage{}
	attempts := map[types.UID]map[string]uint32{}
	for _, s := range answer.Stats {
		uid, name := types.UID(s.GetAttributes().GetLabels()[kubelettypes.KubernetesPodUIDLabel]), s.GetAttributes().GetMetadata().GetName()
		if all[uid] == nil {
			all[uid], attempts[uid] = &usage{containers: map[string]containerUsage{}}, map[string]uint32{}
		}
		attempt := s.GetAttributes().GetMetadata().GetAttempt()
		if last, known := attempts[uid][name]; known && last > attempt {
			continue // an instance that has ended
		}
		attempts[uid][name] = attempt
		all[uid].containers[name] = containerUsage{
			memory: int64(s.GetMemory().GetWorkingSetBytes().GetValue()),
			rootfs: space{int64(s.GetWritableLayer().GetUsedBytes().GetValue()), int64(s.GetWritableLayer().GetInodesUsed().GetValue())},
		}
	}
	known := map[types.UID]*usage{}
	for _, p := range pods {
		u := all[p.UID]
		if u == nil {
			continue
		}
		known[p.UID] = u
		for _, c := range u.containers {
			u.memory += c.memory
		}
		if disks {
			m.addDisks(ctx, p, u)
		}
	}
	return known, nil
}

// addDisks adds what is not the runtime's to tell: logs, volumes, and files that the kubelet
// mounts.
func (m *Manager) addDisks(ctx context.Context, p *v1.Pod, u *usage) {
	for name, c := range u.containers {
		c.logs = treeSpace(filepath.Join(m.LogDir(p), name))
		u.containers[name] = c
	}
	u.volumes = m.volumes(ctx, p)
	for _, path := range m.Files(p) {
		u.files.add(treeSpace(path))
	}
}

// volumes are what the pod's volumes take that are on the node's disk and end with the pod.
func (m *Manager) volumes(ctx context.Context, p *v1.Pod) map[string]space {
	taken := map[string]space{}
	for _, s := range m.Volumes(ctx, p) {
		i := slices.IndexFunc(p.Spec.Volumes, func(v v1.Volume) bool { return v.Name == s.Name })
		if i < 0 || !local(&p.Spec.Volumes[i]) || s.UsedBytes == nil || s.InodesUsed == nil {
			continue
		}
		taken[s.Name] = space{int64(*s.UsedBytes), int64(*s.InodesUsed)}
	}
	return taken
}

func local(v *v1.Volume) bool {
	return v.ConfigMap != nil || v.EmptyDir != nil && v.EmptyDir.Medium == v1.StorageMediumDefault
}

// treeSpace is what a file, or a directory with all below it, takes. What cannot be read counts as
// nothing.
func treeSpace(dir string) (sum space) {
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		var s unix.Stat_t
		if err == nil && unix.Lstat(path, &s) == nil {
			sum.add(space{s.Blocks * 512, 1})
		}
		return nil
	})
	return sum
}

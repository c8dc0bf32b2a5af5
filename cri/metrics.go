package cri

import (
	"context"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/cri/cadvisor"
	"github.com/coracle-project/coracle/pod"
)

// ListMetricDescriptors describes what ListPodSandboxMetrics gives.
func (s *service) ListMetricDescriptors(context.Context,
	*runtimeapi.ListMetricDescriptorsRequest,
) (*runtimeapi.ListMetricDescriptorsResponse, error) {
	return &runtimeapi.ListMetricDescriptorsResponse{Descriptors: cadvisor.Descriptors()}, nil
}

// ListPodSandboxMetrics gives the metrics of all ready pods and their running containers.
func (s *service) ListPodSandboxMetrics(ctx context.Context,
	_ *runtimeapi.ListPodSandboxMetricsRequest,
) (*runtimeapi.ListPodSandboxMetricsResponse, error) {
	return &runtimeapi.ListPodSandboxMetricsResponse{PodMetrics: s.metricsItems(ctx)}, nil
}

func (s *service) metricsItems(ctx context.Context) []*runtimeapi.PodSandboxMetrics {
	all := s.statistics.ListPodStats(ctx, pod.PodStatsFilter{})
	fs := fileSystem(s.config.ImageFS)
	items := make([]*runtimeapi.PodSandboxMetrics, 0, len(all))
	for i := range all {
		p, err := s.sandboxes.Pod(all[i].ID)
		if err != nil {
			continue // removed since it was read
		}
		one := cadvisor.Pod{Pod: p, Stats: all[i]}
		for _, st := range all[i].Containers {
			c, err := s.containers.Container(st.ID)
			if err != nil {
				continue
			}
			// Nothing is left of one that has just ended.
			processes, _ := s.statistics.Processes(ctx, c.ID)
			one.Containers = append(one.Containers, cadvisor.Container{
				Container: c, Image: s.imageName(&c), Stats: st, Processes: processes, FS: fs,
			})
		}
		items = append(items, cadvisor.Metrics(&one))
	}
	return items
}

// fileSystem says where writable layers are; zero if that cannot be seen.
func fileSystem(dir string) cadvisor.FS {
	var st unix.Statfs_t
	if unix.Statfs(dir, &st) != nil {
		return cadvisor.FS{}
	}
	out := cadvisor.FS{Bytes: st.Blocks * uint64(st.Bsize), Inodes: st.Files, InodesFree: st.Ffree}
	mounts, err := mountinfo.GetMounts(mountinfo.ParentsFilter(dir))
	if err != nil {
		return out
	}
	var longest int
	for _, m := range mounts {
		if len(m.Mountpoint) >= longest {
			longest, out.Device = len(m.Mountpoint), m.Source
		}
	}
	return out
}

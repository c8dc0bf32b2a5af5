package cri

import (
	"context"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/cri/convert"
	"github.com/coracle-project/coracle/cri/field"
	"github.com/coracle-project/coracle/internal/cgstat"
	"github.com/coracle-project/coracle/pod"
)

// Statistics are what pods and containers use.
type Statistics interface {
	Stats(ctx context.Context, id string) (pod.ContainerStats, error)
	ListStats(ctx context.Context, f pod.ContainerFilter) []pod.ContainerStats
	PodStats(ctx context.Context, podID string) (pod.PodStats, error)
	ListPodStats(ctx context.Context, f pod.PodStatsFilter) []pod.PodStats
	Processes(ctx context.Context, id string) (cgstat.Processes, error)
}

// ContainerStats reads what one container uses.
func (s *service) ContainerStats(ctx context.Context, r *runtimeapi.ContainerStatsRequest) (*runtimeapi.ContainerStatsResponse, error) {
	if err := field.Required("container_id", r.GetContainerId()); err != nil {
		return nil, err
	}
	c, err := s.containers.Container(r.GetContainerId())
	if err != nil {
		return nil, err
	}
	st, err := s.statistics.Stats(ctx, c.ID)
	if err != nil {
		return nil, err
	}
	return &runtimeapi.ContainerStatsResponse{Stats: s.containerStats(&c, &st)}, nil
}

// ListContainerStats reads what containers use. One that cannot be read is left out.
func (s *service) ListContainerStats(ctx context.Context,
	r *runtimeapi.ListContainerStatsRequest,
) (*runtimeapi.ListContainerStatsResponse, error) {
	return &runtimeapi.ListContainerStatsResponse{Stats: s.containerStatsItems(ctx, r.GetFilter())}, nil
}

func (s *service) containerStatsItems(ctx context.Context, f *runtimeapi.ContainerStatsFilter) []*runtimeapi.ContainerStats {
	return s.withContainers(s.statistics.ListStats(ctx,
		pod.ContainerFilter{ID: f.GetId(), PodID: f.GetPodSandboxId(), Labels: f.GetLabelSelector()}))
}

// withContainers converts readings; those of containers that were removed since are left out.
func (s *service) withContainers(all []pod.ContainerStats) []*runtimeapi.ContainerStats {
	items := make([]*runtimeapi.ContainerStats, 0, len(all))
	for i := range all {
		if c, err := s.containers.Container(all[i].ID); err == nil {
			items = append(items, s.containerStats(&c, &all[i]))
		}
	}
	return items
}

// PodSandboxStats reads what one pod uses.
func (s *service) PodSandboxStats(ctx context.Context, r *runtimeapi.PodSandboxStatsRequest) (*runtimeapi.PodSandboxStatsResponse, error) {
	if err := field.Required("pod_sandbox_id", r.GetPodSandboxId()); err != nil {
		return nil, err
	}
	p, err := s.sandboxes.Pod(r.GetPodSandboxId())
	if err != nil {
		return nil, err
	}
	st, err := s.statistics.PodStats(ctx, p.ID)
	if err != nil {
		return nil, err
	}
	return &runtimeapi.PodSandboxStatsResponse{Stats: s.podStats(&p, &st)}, nil
}

// ListPodSandboxStats reads what ready pods use. One that cannot be read is left out.
func (s *service) ListPodSandboxStats(ctx context.Context,
	r *runtimeapi.ListPodSandboxStatsRequest,
) (*runtimeapi.ListPodSandboxStatsResponse, error) {
	return &runtimeapi.ListPodSandboxStatsResponse{Stats: s.podStatsItems(ctx, r.GetFilter())}, nil
}

func (s *service) podStatsItems(ctx context.Context, f *runtimeapi.PodSandboxStatsFilter) []*runtimeapi.PodSandboxStats {
	all := s.statistics.ListPodStats(ctx, pod.PodStatsFilter{ID: f.GetId(), Labels: f.GetLabelSelector()})
	items := make([]*runtimeapi.PodSandboxStats, 0, len(all))
	for i := range all {
		if p, err := s.sandboxes.Pod(all[i].ID); err == nil {
			items = append(items, s.podStats(&p, &all[i]))
		}
	}
	return items
}

// ImageFsInfo reports what images take. Writable layers are on the same file system,
// which the kubelet learns from the same mount point being given twice.
func (s *service) ImageFsInfo(_ context.Context, _ *runtimeapi.ImageFsInfoRequest) (*runtimeapi.ImageFsInfoResponse, error) {
	bytes, inodes, err := s.deps.Images.Usage()
	if err != nil {
		return nil, err
	}
	usage := &runtimeapi.FilesystemUsage{
		Timestamp:  convert.Nanos(time.Now()),
		FsId:       &runtimeapi.FilesystemIdentifier{Mountpoint: s.config.ImageFS},
		UsedBytes:  value(uint64(bytes)),
		InodesUsed: value(uint64(inodes)),
	}
	return &runtimeapi.ImageFsInfoResponse{
		ImageFilesystems:     []*runtimeapi.FilesystemUsage{usage},
		ContainerFilesystems: []*runtimeapi.FilesystemUsage{usage},
	}, nil
}

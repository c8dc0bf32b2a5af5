package cri

import (
	"context"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/pod"
)

// ContainerStats reads what one container uses now.
func (s *service) ContainerStats(ctx context.Context, r *runtimeapi.ContainerStatsRequest) (*runtimeapi.ContainerStatsResponse, error) {
	if err := required("container_id", r.GetContainerId()); err != nil {
		return nil, err
	}
	c, err := s.deps.Pods.Container(r.GetContainerId())
	if err != nil {
		return nil, err
	}
	st, err := s.deps.Pods.Stats(ctx, c.ID)
	if err != nil {
		return nil, err
	}
	return &runtimeapi.ContainerStatsResponse{Stats: s.containerStats(&c, &st)}, nil
}

// ListContainerStats reads what containers use now. One that cannot be read is
// left out.
func (s *service) ListContainerStats(ctx context.Context, r *runtimeapi.ListContainerStatsRequest) (*runtimeapi.ListContainerStatsResponse, error) {
	f := r.GetFilter()
	all := s.deps.Pods.ListStats(ctx, pod.ContainerFilter{ID: f.GetId(), PodID: f.GetPodSandboxId(), Labels: f.GetLabelSelector()})
	resp := &runtimeapi.ListContainerStatsResponse{Stats: make([]*runtimeapi.ContainerStats, 0, len(all))}
	for i := range all {
		c, err := s.deps.Pods.Container(all[i].ID)
		if err != nil {
			continue // removed since it was read
		}
		resp.Stats = append(resp.Stats, s.containerStats(&c, &all[i]))
	}
	return resp, nil
}

// containerStats converts one reading. UsageNanoCores stays unset: it would need a
// second reading, and kubelet and crictl compute it from theirs.
func (s *service) containerStats(c *pod.Container, st *pod.ContainerStats) *runtimeapi.ContainerStats {
	at := nanos(st.Time)
	return &runtimeapi.ContainerStats{
		Attributes: &runtimeapi.ContainerAttributes{
			Id:          c.ID,
			Metadata:    containerMetadata(c),
			Labels:      c.Config.Labels,
			Annotations: c.Config.Annotations,
		},
		Cpu: &runtimeapi.CpuUsage{Timestamp: at, UsageCoreNanoSeconds: value(st.CPUUsage)},
		Memory: &runtimeapi.MemoryUsage{
			Timestamp:       at,
			WorkingSetBytes: value(st.MemoryWorkingSet),
			AvailableBytes:  value(st.MemoryAvailable),
			UsageBytes:      value(st.MemoryUsage),
			RssBytes:        value(st.MemoryRSS),
			PageFaults:      value(st.PageFaults),
			MajorPageFaults: value(st.MajorPageFaults),
		},
		Swap: &runtimeapi.SwapUsage{Timestamp: at, SwapUsageBytes: value(st.SwapUsage)},
		WritableLayer: &runtimeapi.FilesystemUsage{
			Timestamp:  at,
			FsId:       &runtimeapi.FilesystemIdentifier{Mountpoint: s.config.ImageFS},
			UsedBytes:  value(st.DiskBytes),
			InodesUsed: value(st.DiskInodes),
		},
	}
}

// ImageFsInfo reports what images take. Writable layers are on the same file system,
// which the kubelet learns from the same mount point being given twice.
func (s *service) ImageFsInfo(_ context.Context, _ *runtimeapi.ImageFsInfoRequest) (*runtimeapi.ImageFsInfoResponse, error) {
	bytes, inodes, err := s.deps.Images.Usage()
	if err != nil {
		return nil, err
	}
	usage := &runtimeapi.FilesystemUsage{
		Timestamp:  nanos(time.Now()),
		FsId:       &runtimeapi.FilesystemIdentifier{Mountpoint: s.config.ImageFS},
		UsedBytes:  value(uint64(bytes)),
		InodesUsed: value(uint64(inodes)),
	}
	return &runtimeapi.ImageFsInfoResponse{
		ImageFilesystems:     []*runtimeapi.FilesystemUsage{usage},
		ContainerFilesystems: []*runtimeapi.FilesystemUsage{usage},
	}, nil
}

func value(n uint64) *runtimeapi.UInt64Value { return &runtimeapi.UInt64Value{Value: n} }

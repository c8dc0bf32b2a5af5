package shim

import (
	"context"
	"fmt"

	v1 "github.com/containerd/cgroups/v3/cgroup1/stats"
	v2 "github.com/containerd/cgroups/v3/cgroup2/stats"
	task "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/opencontainers/cgroups"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/coracle-project/coracle/runtime"
)

// Stats reads the container's cgroup; the answer is containerd's metrics message for
// the version of cgroups that this machine has.
func (s *Service) Stats(ctx context.Context, r *task.StatsRequest) (*task.StatsResponse, error) {
	c, err := s.get(r.ID)
	if err != nil {
		return nil, fmt.Errorf("stats of %w", err)
	}
	engine, err := c.alive()
	if err != nil {
		return nil, fmt.Errorf("stats of %w", err)
	}
	st, err := engine.Stats(ctx)
	if err != nil {
		return nil, fmt.Errorf("stats of container %s: %w", c.id, err)
	}
	var m proto.Message = metricsV1(st)
	if cgroups.IsCgroup2UnifiedMode() {
		m = metricsV2(st)
	}
	b, err := proto.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("stats of container %s: %w", c.id, err)
	}
	// containerd's type URLs are bare message names.
	return &task.StatsResponse{Stats: &anypb.Any{TypeUrl: string(m.ProtoReflect().Descriptor().FullName()), Value: b}}, nil
}

func metricsV1(s runtime.Stats) *v1.Metrics {
	return &v1.Metrics{
		CPU: &v1.CPUStat{
			Usage: &v1.CPUUsage{Total: s.CPUUsage, User: s.CPUUser, Kernel: s.CPUSystem},
			Throttling: &v1.Throttle{
				Periods: s.CPUPeriods, ThrottledPeriods: s.CPUThrottledPeriods, ThrottledTime: s.CPUThrottledTime,
			},
		},
		Memory: &v1.MemoryStat{
			Usage: &v1.MemoryEntry{Usage: s.MemoryUsage, Limit: s.MemoryLimit},
			Swap:  &v1.MemoryEntry{Usage: s.MemoryUsage + s.MemorySwap}, // memory.memsw counts both
			RSS:   s.MemoryRSS, TotalRSS: s.MemoryRSS,
			InactiveFile: s.MemoryUsage - s.MemoryWorkingSet, TotalInactiveFile: s.MemoryUsage - s.MemoryWorkingSet,
			PgFault: s.MemoryPageFaults, TotalPgFault: s.MemoryPageFaults,
			PgMajFault: s.MemoryMajorPageFaults, TotalPgMajFault: s.MemoryMajorPageFaults,
		},
		Pids:             &v1.PidsStat{Current: s.Pids, Limit: s.PidsLimit},
		MemoryOomControl: &v1.MemoryOomControl{OomKill: s.OOMKills},
	}
}

func metricsV2(s runtime.Stats) *v2.Metrics {
	return &v2.Metrics{
		CPU: &v2.CPUStat{
			UsageUsec: s.CPUUsage / 1000, UserUsec: s.CPUUser / 1000, SystemUsec: s.CPUSystem / 1000,
			NrPeriods: s.CPUPeriods, NrThrottled: s.CPUThrottledPeriods, ThrottledUsec: s.CPUThrottledTime / 1000,
		},
		Memory: &v2.MemoryStat{
			Usage: s.MemoryUsage, UsageLimit: s.MemoryLimit, SwapUsage: s.MemorySwap, Anon: s.MemoryRSS,
			InactiveFile: s.MemoryUsage - s.MemoryWorkingSet,
			Pgfault:      s.MemoryPageFaults, Pgmajfault: s.MemoryMajorPageFaults,
		},
		Pids:         &v2.PidsStat{Current: s.Pids, Limit: s.PidsLimit},
		MemoryEvents: &v2.MemoryEvents{OomKill: s.OOMKills},
	}
}

package client

import (
	"fmt"
	"strings"

	v1 "github.com/containerd/cgroups/v3/cgroup1/stats"
	v2 "github.com/containerd/cgroups/v3/cgroup2/stats"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/coracle-project/coracle/runtime"
)

// decodeStats reads containerd's metrics messages, which every shim answers with.
func decodeStats(a *anypb.Any) (runtime.Stats, error) {
	switch name := a.GetTypeUrl(); name[strings.LastIndexByte(name, '/')+1:] {
	case "io.containerd.cgroups.v1.Metrics":
		var m v1.Metrics
		if err := proto.Unmarshal(a.Value, &m); err != nil {
			return runtime.Stats{}, err
		}
		return fromV1(&m), nil
	case "io.containerd.cgroups.v2.Metrics":
		var m v2.Metrics
		if err := proto.Unmarshal(a.Value, &m); err != nil {
			return runtime.Stats{}, err
		}
		return fromV2(&m), nil
	default:
		return runtime.Stats{}, fmt.Errorf("metrics of unknown type %q", name)
	}
}

func fromV1(m *v1.Metrics) runtime.Stats {
	cpu, throttled, mem := m.GetCPU().GetUsage(), m.GetCPU().GetThrottling(), m.GetMemory()
	usage := mem.GetUsage().GetUsage()
	return runtime.Stats{
		CPUUsage: cpu.GetTotal(), CPUUser: cpu.GetUser(), CPUSystem: cpu.GetKernel(),
		CPUPeriods: throttled.GetPeriods(), CPUThrottledPeriods: throttled.GetThrottledPeriods(),
		CPUThrottledTime: throttled.GetThrottledTime(),
		MemoryUsage:      usage, MemoryLimit: mem.GetUsage().GetLimit(),
		MemoryWorkingSet: less(usage, mem.GetTotalInactiveFile()), MemoryRSS: mem.GetTotalRSS(),
		MemorySwap:       less(mem.GetSwap().GetUsage(), usage),
		MemoryPageFaults: mem.GetTotalPgFault(), MemoryMajorPageFaults: mem.GetTotalPgMajFault(),
		Pids: m.GetPids().GetCurrent(), PidsLimit: m.GetPids().GetLimit(),
		OOMKills: m.GetMemoryOomControl().GetOomKill(),
	}
}

func fromV2(m *v2.Metrics) runtime.Stats {
	cpu, mem := m.GetCPU(), m.GetMemory()
	return runtime.Stats{
		CPUUsage: cpu.GetUsageUsec() * 1000, CPUUser: cpu.GetUserUsec() * 1000, CPUSystem: cpu.GetSystemUsec() * 1000,
		CPUPeriods: cpu.GetNrPeriods(), CPUThrottledPeriods: cpu.GetNrThrottled(),
		CPUThrottledTime: cpu.GetThrottledUsec() * 1000,
		MemoryUsage:      mem.GetUsage(), MemoryLimit: mem.GetUsageLimit(),
		MemoryWorkingSet: less(mem.GetUsage(), mem.GetInactiveFile()), MemoryRSS: mem.GetAnon(),
		MemorySwap:       mem.GetSwapUsage(),
		MemoryPageFaults: mem.GetPgfault(), MemoryMajorPageFaults: mem.GetPgmajfault(),
		Pids: m.GetPids().GetCurrent(), PidsLimit: m.GetPids().GetLimit(),
		OOMKills: m.GetMemoryEvents().GetOomKill(),
	}
}

// less is a-b, but never wraps around: counters are not read in one instant.
func less(a, b uint64) uint64 { return a - min(a, b) }

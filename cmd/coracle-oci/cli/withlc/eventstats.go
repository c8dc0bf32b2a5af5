package withlc

import (
	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/runc/types"
)

// statsOf is a cgroup's statistics as runc's events have them.
func statsOf(in *cgroups.Stats) *types.Stats {
	out := &types.Stats{CPUSet: types.CPUSet(in.CPUSetStats), Hugetlb: map[string]types.Hugetlb{}}
	out.Pids = types.Pids{Current: in.PidsStats.Current, Limit: in.PidsStats.Limit}

	use, throttled := in.CpuStats.CpuUsage, in.CpuStats.ThrottlingData
	out.CPU = types.Cpu{
		Usage: types.CpuUsage{
			Total: use.TotalUsage, Kernel: use.UsageInKernelmode, User: use.UsageInUsermode,
			Percpu: use.PercpuUsage, PercpuKernel: use.PercpuUsageInKernelmode, PercpuUser: use.PercpuUsageInUsermode,
		},
		Throttling: types.Throttling{
			Periods: throttled.Periods, ThrottledPeriods: throttled.ThrottledPeriods, ThrottledTime: throttled.ThrottledTime,
		},
		PSI: in.CpuStats.PSI,
	}

	m := in.MemoryStats
	out.Memory = types.Memory{
		Cache: m.Cache, Raw: m.Stats, PSI: m.PSI,
		Usage: memoryEntry(m.Usage), Swap: memoryEntry(m.SwapUsage),
		Kernel: memoryEntry(m.KernelUsage), KernelTCP: memoryEntry(m.KernelTCPUsage),
	}

	b := in.BlkioStats
	out.Blkio = types.Blkio{
		IoServiceBytesRecursive: blkioEntries(b.IoServiceBytesRecursive),
		IoServicedRecursive:     blkioEntries(b.IoServicedRecursive),
		IoQueuedRecursive:       blkioEntries(b.IoQueuedRecursive),
		IoServiceTimeRecursive:  blkioEntries(b.IoServiceTimeRecursive),
		IoWaitTimeRecursive:     blkioEntries(b.IoWaitTimeRecursive),
		IoMergedRecursive:       blkioEntries(b.IoMergedRecursive),
		IoTimeRecursive:         blkioEntries(b.IoTimeRecursive),
		SectorsRecursive:        blkioEntries(b.SectorsRecursive),
		PSI:                     b.PSI,
	}
	for size, h := range in.HugetlbStats {
		out.Hugetlb[size] = types.Hugetlb{Usage: h.Usage, Max: h.MaxUsage, Failcnt: h.Failcnt}
	}
	return out
}

func memoryEntry(m cgroups.MemoryData) types.MemoryEntry {
	return types.MemoryEntry{Limit: m.Limit, Usage: m.Usage, Max: m.MaxUsage, Failcnt: m.Failcnt}
}

func blkioEntries(in []cgroups.BlkioStatEntry) []types.BlkioEntry {
	var out []types.BlkioEntry
	for _, e := range in {
		out = append(out, types.BlkioEntry(e))
	}
	return out
}

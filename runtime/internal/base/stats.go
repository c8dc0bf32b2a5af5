package base

import (
	"context"
	"math"
	"time"

	"github.com/opencontainers/cgroups"

	"github.com/coracle-project/coracle/runtime"
)

// Stats implements runtime.Container.
func (c *Container) Stats(context.Context) (runtime.Stats, error) {
	cgm, err := c.Rec.CgroupManager()
	if err != nil {
		return runtime.Stats{}, c.Fail("get stats of", err)
	}
	// Block devices, huge pages and the rest would triple the files read.
	s, err := cgm.Stats(&cgroups.StatsOptions{Controllers: cgroups.CPU | cgroups.Memory | cgroups.Pids})
	if err != nil {
		if !c.Rec.Init.Alive() {
			err = runtime.ErrNotRunning
		}
		return runtime.Stats{}, c.Fail("get stats of", err)
	}
	out := runtime.Stats{Time: time.Now()}
	cpu := s.CpuStats
	out.CPUUsage = cpu.CpuUsage.TotalUsage
	out.CPUUser = cpu.CpuUsage.UsageInUsermode
	out.CPUSystem = cpu.CpuUsage.UsageInKernelmode
	out.CPUPeriods = cpu.ThrottlingData.Periods
	out.CPUThrottledPeriods = cpu.ThrottlingData.ThrottledPeriods
	out.CPUThrottledTime = cpu.ThrottlingData.ThrottledTime
	fillMemory(&out, s.MemoryStats)
	out.Pids, out.PidsLimit = s.PidsStats.Current, s.PidsStats.Limit
	if kills, err := cgm.OOMKillCount(); err == nil {
		out.OOMKills = kills
	}
	return out, nil
}

// OOMKills implements runtime.OOMCounter.
func (c *Container) OOMKills(context.Context) (uint64, error) {
	cgm, err := c.Rec.CgroupManager()
	if err != nil {
		return 0, c.Fail("get stats of", err)
	}
	kills, err := cgm.OOMKillCount()
	if err != nil {
		return 0, c.Fail("get stats of", err)
	}
	return kills, nil
}

func fillMemory(out *runtime.Stats, m cgroups.MemoryStats) {
	first := func(names ...string) uint64 {
		for _, n := range names {
			if v, ok := m.Stats[n]; ok {
				return v
			}
		}
		return 0
	}
	out.MemoryUsage = m.Usage.Usage
	if m.Usage.Limit < math.MaxInt64/4096*4096 { // the kernel's "no limit" on v1; v2 gives the greatest uint64
		out.MemoryLimit = m.Usage.Limit
	}
	// The v1 names come first; inactive_file exists in both but counts only the
	// cgroup itself on v1.
	if inactive := first("total_inactive_file", "inactive_file"); inactive < m.Usage.Usage {
		out.MemoryWorkingSet = m.Usage.Usage - inactive
	}
	out.MemoryRSS = first("total_rss", "anon", "rss")
	// Not SwapOnlyUsage: on v1 that is a difference of two counters read one
	// after the other, and can be below zero.
	if swap, ok := m.Stats["total_swap"]; ok {
		out.MemorySwap = swap
	} else {
		out.MemorySwap = m.SwapOnlyUsage.Usage
	}
	out.MemoryPageFaults = first("total_pgfault", "pgfault")
	out.MemoryMajorPageFaults = first("total_pgmajfault", "pgmajfault")
}

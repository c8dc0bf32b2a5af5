// Package cgstat reads what a cgroup's processes use, as the kubelet and cAdvisor count
// it, on cgroup v2, on v1, and on v1 with the unified hierarchy alongside it. It only
// reads files, so that a hung shim or container keeps no one from learning it.
//
// A controller that a hierarchy lacks leaves its figures zero.
package cgstat

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"time"

	"github.com/opencontainers/cgroups"
	v1 "github.com/opencontainers/cgroups/fs"
	v2 "github.com/opencontainers/cgroups/fs2"
	"github.com/opencontainers/cgroups/fscommon"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/internal/cgroupmode"
)

// ErrNone says that there is no such cgroup.
var ErrNone = errors.New("no such cgroup")

// Usage is one reading. Counters begin with the cgroup and include its descendants.
type Usage struct {
	Time time.Time
	CPU
	Memory
	// Tasks are processes and threads. A limit of 0 is none.
	Tasks, TasksLimit uint64
	// Devices has one entry for each block device that was used.
	Devices []Device
	// Hugepages is by page size as the kernel spells it, "2MB".
	Hugepages map[string]Hugepages
	// The time that tasks lost waiting; nil where the kernel does not count it.
	CPUPressure, MemoryPressure, IOPressure *Pressure
}

// CPU is processor time.
type CPU struct {
	Total, User, System time.Duration
	// Periods with a quota, those that it cut short, and for how long.
	Periods, ThrottledPeriods uint64
	Throttled                 time.Duration
}

// Memory is in bytes, but for the last line.
type Memory struct {
	Used, Peak, Limit uint64 // a limit of 0 is none
	// WorkingSet is what is used less the file pages that no one has asked for lately.
	WorkingSet                                           uint64
	RSS, Cache, Mapped, Kernel, ActiveFile, InactiveFile uint64
	Swap                                                 uint64
	Failures, PageFaults, MajorPageFaults, OOMKills      uint64
	SwapLimit                                            *uint64 // nil is none
}

// Device is the traffic of a block device.
type Device struct {
	Name                                 string // as in /dev; MAJOR:MINOR if it has gone
	Major, Minor                         uint64
	ReadBytes, WriteBytes, Reads, Writes uint64
}

// Hugepages is the use of one size of huge pages, in bytes; Failures is a count.
type Hugepages struct{ Used, Peak, Failures uint64 }

// Pressure is pressure stall information (Documentation/accounting/psi.rst): Some is when
// at least one task waited, Full when all did.
type Pressure struct{ Some, Full Stall }

// Stall is the share of time lost, in percent over the last 10, 60 and 300 seconds, and
// the sum of it.
type Stall struct {
	Avg10, Avg60, Avg300 float64
	Total                time.Duration
}

const mountPoint = "/sys/fs/cgroup"

// controllers are the hierarchies of v1 that have something to read.
var controllers = []string{"cpu", "cpuacct", "memory", "pids", "blkio", "hugetlb"}

// wanted leaves out what no one asks for and what is slow to read; withPressure is what the
// unified hierarchy alongside v1 has, which has no controllers.
var (
	wanted = &cgroups.StatsOptions{
		Controllers: cgroups.CPU | cgroups.Memory | cgroups.Pids | cgroups.IO | cgroups.HugeTLB,
	}
	withPressure = &cgroups.StatsOptions{Controllers: cgroups.CPU | cgroups.Memory | cgroups.IO}
)

// Read reads the cgroup at path, which starts at the root of each hierarchy. ErrNone if
// there is none.
func Read(path string) (Usage, error) {
	u, err := read(path)
	if err != nil {
		return Usage{}, fmt.Errorf("read cgroup %s: %w", path, err)
	}
	u.Time = time.Now()
	return u, nil
}

func read(path string) (Usage, error) {
	if cgroupmode.Unified() {
		return readV2(filepath.Join(mountPoint, path))
	}
	dirs := map[string]string{}
	for _, name := range controllers {
		if dir := filepath.Join(mountPoint, name, path); isDir(dir) {
			dirs[name] = dir
		}
	}
	return readV1(dirs, filepath.Join(mountPoint, "unified", path))
}

func isDir(path string) bool {
	st, err := os.Stat(path)
	return err == nil && st.IsDir()
}

func readV2(dir string) (Usage, error) {
	if !isDir(dir) {
		return Usage{}, ErrNone
	}
	s, err := statsV2(dir, wanted)
	if err != nil {
		return Usage{}, err
	}
	u := convert(s)
	m, stat := s.MemoryStats, s.MemoryStats.Stats
	u.fillMemory(stat["inactive_file"])
	u.Memory.RSS, u.Memory.Mapped = stat["anon"], stat["file_mapped"]
	u.Memory.Cache, u.Memory.ActiveFile = stat["file"], stat["active_file"]
	u.Memory.Kernel = stat["kernel"]
	u.Memory.Swap = m.SwapOnlyUsage.Usage
	if swap := m.SwapOnlyUsage.Limit; limit(swap) == swap {
		u.Memory.SwapLimit = &swap
	}
	u.Memory.PageFaults, u.Memory.MajorPageFaults = stat["pgfault"], stat["pgmajfault"]
	u.Memory.OOMKills = event(filepath.Join(dir, "memory.events"), "oom_kill")
	u.Memory.Failures = event(filepath.Join(dir, "memory.events"), "max")
	return u, nil
}

func statsV2(dir string, what *cgroups.StatsOptions) (*cgroups.Stats, error) {
	m, err := v2.NewManager(&cgroups.Cgroup{Resources: &cgroups.Resources{}}, dir)
	if err != nil {
		return nil, err
	}
	s, err := m.Stats(what)
	return s, gone(err)
}

// readV1 reads the hierarchies in dirs. v1 does not count pressure: that is read from unified, the
// directory in the unified hierarchy.
func readV1(dirs map[string]string, unified string) (Usage, error) {
	if len(dirs) == 0 {
		return Usage{}, ErrNone
	}
	m, err := v1.NewManager(&cgroups.Cgroup{Resources: &cgroups.Resources{}}, dirs)
	if err != nil {
		return Usage{}, err
	}
	s, err := m.Stats(wanted)
	if err != nil {
		return Usage{}, gone(err)
	}
	u := convert(s)
	stat := s.MemoryStats.Stats
	u.fillMemory(stat["total_inactive_file"])
	u.Memory.RSS, u.Memory.Mapped = stat["total_rss"], stat["total_mapped_file"]
	u.Memory.Cache, u.Memory.ActiveFile = stat["total_cache"], stat["total_active_file"]
	u.Memory.Kernel = s.MemoryStats.KernelUsage.Usage
	// Not SwapOnlyUsage: that is a difference of two counters read one after the other,
	// and can be below zero.
	u.Memory.Swap = stat["total_swap"]
	if both := limit(s.MemoryStats.SwapUsage.Limit); both != 0 {
		swap := both - min(u.Memory.Limit, both) // v1 limits memory and swap together
		u.Memory.SwapLimit = &swap
	}
	u.Memory.PageFaults, u.Memory.MajorPageFaults = stat["total_pgfault"], stat["total_pgmajfault"]
	u.Memory.Failures = s.MemoryStats.Usage.Failcnt
	u.Memory.OOMKills = event(filepath.Join(dirs["memory"], "memory.oom_control"), "oom_kill")
	if isDir(unified) {
		if s, err := statsV2(unified, withPressure); err == nil {
			u.setPressure(s)
		}
	}
	return u, nil
}

// gone is err, or ErrNone for a cgroup that was deleted while it was read.
func gone(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return ErrNone
	}
	return err
}

// event reads one counter of a file of them; 0 if there is none.
func event(file, name string) uint64 {
	n, err := fscommon.GetValueByKey(filepath.Dir(file), filepath.Base(file), name)
	if err != nil {
		return 0
	}
	return n
}

// convert takes over what both versions have alike.
func convert(s *cgroups.Stats) Usage {
	cpu, throttled := s.CpuStats.CpuUsage, s.CpuStats.ThrottlingData
	u := Usage{
		CPU: CPU{
			Total: time.Duration(cpu.TotalUsage), User: time.Duration(cpu.UsageInUsermode), System: time.Duration(cpu.UsageInKernelmode),
			Periods: throttled.Periods, ThrottledPeriods: throttled.ThrottledPeriods, Throttled: time.Duration(throttled.ThrottledTime),
		},
		Memory: Memory{
			Used: s.MemoryStats.Usage.Usage, Peak: s.MemoryStats.Usage.MaxUsage, Limit: limit(s.MemoryStats.Usage.Limit),
		},
		Tasks: s.PidsStats.Current, TasksLimit: limit(s.PidsStats.Limit),
		Devices: devices(&s.BlkioStats),
	}
	for size, h := range s.HugetlbStats {
		if u.Hugepages == nil {
			u.Hugepages = map[string]Hugepages{}
		}
		u.Hugepages[size] = Hugepages{Used: h.Usage, Peak: h.MaxUsage, Failures: h.Failcnt}
	}
	u.setPressure(s)
	return u
}

func (u *Usage) setPressure(s *cgroups.Stats) {
	u.CPUPressure, u.MemoryPressure, u.IOPressure = pressure(s.CpuStats.PSI), pressure(s.MemoryStats.PSI), pressure(s.BlkioStats.PSI)
}

func pressure(p *cgroups.PSIStats) *Pressure {
	if p == nil {
		return nil
	}
	stall := func(d cgroups.PSIData) Stall {
		return Stall{Avg10: d.Avg10, Avg60: d.Avg60, Avg300: d.Avg300, Total: time.Duration(d.Total) * time.Microsecond}
	}
	return &Pressure{Some: stall(p.Some), Full: stall(p.Full)}
}

// fillMemory computes the working set as cAdvisor does.
func (u *Usage) fillMemory(inactive uint64) {
	u.Memory.InactiveFile = inactive
	u.Memory.WorkingSet = u.Memory.Used - min(inactive, u.Memory.Used)
}

// limit is 0 for what the kernel writes where there is none: v1 the greatest number of
// whole pages that an int64 has bytes for, v2 "max".
func limit(n uint64) uint64 {
	if n >= math.MaxInt64-1<<16 {
		return 0
	}
	return n
}

func devices(b *cgroups.BlkioStats) []Device {
	var out []Device
	at := func(e cgroups.BlkioStatEntry) *Device {
		for i := range out {
			if out[i].Major == e.Major && out[i].Minor == e.Minor {
				return &out[i]
			}
		}
		out = append(out, Device{Name: deviceName(e.Major, e.Minor), Major: e.Major, Minor: e.Minor})
		return &out[len(out)-1]
	}
	for _, e := range b.IoServiceBytesRecursive {
		switch e.Op {
		case "Read":
			at(e).ReadBytes = e.Value
		case "Write":
			at(e).WriteBytes = e.Value
		}
	}
	for _, e := range b.IoServicedRecursive {
		switch e.Op {
		case "Read":
			at(e).Reads = e.Value
		case "Write":
			at(e).Writes = e.Value
		}
	}
	return out
}

func deviceName(major, minor uint64) string {
	id := fmt.Sprintf("%d:%d", major, minor)
	to, err := os.Readlink("/sys/dev/block/" + id)
	if err != nil {
		return id
	}
	return filepath.Base(to)
}

package server

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// machine is what the kernel tells of the whole machine.
type machine struct {
	booted  time.Time
	cpu     *statsapi.CPUStats
	memory  *statsapi.MemoryStats
	swap    *statsapi.SwapStats
	network *statsapi.NetworkStats
	rlimit  *statsapi.RlimitStats
}

// tick is the unit of times in /proc/stat: USER_HZ is 100 on every architecture that Go runs on.
const tick = 10 * time.Millisecond

func readMachine(now time.Time) (*machine, error) {
	m := &machine{}
	clock := metav1.NewTime(now)
	stat, err := os.ReadFile("/proc/stat")
	if err != nil {
		return nil, err
	}
	busy, booted, err := cpuTime(stat)
	if err != nil {
		return nil, err
	}
	m.booted = booted
	nanoseconds := uint64(busy)
	m.cpu = &statsapi.CPUStats{Time: clock, UsageCoreNanoSeconds: &nanoseconds}
	meminfo, err := pairs("/proc/meminfo", 1<<10)
	if err != nil {
		return nil, err
	}
	vmstat, err := pairs("/proc/vmstat", 1)
	if err != nil {
		return nil, err
	}
	total, usage := meminfo["MemTotal:"], meminfo["MemTotal:"]-meminfo["MemFree:"]
	working := usage - min(usage, meminfo["Inactive(file):"])
	available, rss := total-working, meminfo["AnonPages:"]
	faults, major := vmstat["pgfault"], vmstat["pgmajfault"]
	m.memory = &statsapi.MemoryStats{
		Time: clock, AvailableBytes: &available, UsageBytes: &usage, WorkingSetBytes: &working, RSSBytes: &rss, PageFaults: &faults,
		MajorPageFaults: &major,
	}
	free, used := meminfo["SwapFree:"], meminfo["SwapTotal:"]-meminfo["SwapFree:"]
	m.swap = &statsapi.SwapStats{Time: clock, SwapAvailableBytes: &free, SwapUsageBytes: &used}
	if m.network, err = interfaces(clock); err != nil {
		return nil, err
	}
	m.rlimit = processes(clock)
	return m, nil
}

// cpuTime is for how long all processors together have been busy since the machine was booted, and
// when that was.
func cpuTime(stat []byte) (busy time.Duration, booted time.Time, err error) {
	for line := range bytes.Lines(stat) {
		fields := strings.Fields(string(line))
		switch {
		case len(fields) > 8 && fields[0] == "cpu":
			// user nice system idle iowait irq softirq steal; a guest's time is in user already.
			for _, i := range []int{1, 2, 3, 6, 7, 8} {
				ticks, err := strconv.ParseUint(fields[i], 10, 63)
				if err != nil {
					return 0, booted, fmt.Errorf("/proc/stat: %w", err)
				}
				busy += time.Duration(ticks) * tick
			}
		case len(fields) == 2 && fields[0] == "btime":
			seconds, err := strconv.ParseInt(fields[1], 10, 64)
			if err != nil {
				return 0, booted, fmt.Errorf("/proc/stat: %w", err)
			}
			booted = time.Unix(seconds, 0)
		}
	}
	return busy, booted, nil
}

// pairs reads a file of lines with a name and a number.
func pairs(path string, unit uint64) (map[string]uint64, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	values := map[string]uint64{}
	for line := range bytes.Lines(data) {
		fields := strings.Fields(string(line))
		if len(fields) < 2 {
			continue
		}
		if n, err := strconv.ParseUint(fields[1], 10, 64); err == nil {
			values[fields[0]] = n * unit
		}
	}
	return values, nil
}

// interfaces are the figures of the machine's network devices. The node's own figures are those of
// the device with the default route.
func interfaces(clock metav1.Time) (*statsapi.NetworkStats, error) {
	data, err := os.ReadFile("/proc/self/net/dev")
	if err != nil {
		return nil, err
	}
	n := &statsapi.NetworkStats{Time: clock}
	standard := defaultInterface()
	for line := range bytes.Lines(data) {
		name, figures, ok := strings.Cut(string(line), ":")
		name = strings.TrimSpace(name)
		fields := strings.Fields(figures)
		if !ok || len(fields) < 16 || name == "lo" || strings.HasPrefix(name, "veth") {
			continue
		}
		of := func(i int) *uint64 {
			v, err := strconv.ParseUint(fields[i], 10, 64)
			if err != nil {
				return nil
			}
			return &v
		}
		device := statsapi.InterfaceStats{Name: name, RxBytes: of(0), RxErrors: of(2), TxBytes: of(8), TxErrors: of(10)}
		n.Interfaces = append(n.Interfaces, device)
		if name == standard {
			n.InterfaceStats = device
		}
	}
	return n, nil
}

func defaultInterface() string {
	data, err := os.ReadFile("/proc/self/net/route")
	if err != nil {
		return ""
	}
	lines := bufio.NewScanner(bytes.NewReader(data))
	for lines.Scan() {
		// Iface Destination Gateway Flags RefCnt Use Metric Mask …
		if f := strings.Fields(lines.Text()); len(f) > 7 && f[1] == "00000000" && f[7] == "00000000" {
			return f[0]
		}
	}
	return ""
}

// processes are how many there are and may be.
func processes(clock metav1.Time) *statsapi.RlimitStats {
	stats := &statsapi.RlimitStats{Time: clock}
	if data, err := os.ReadFile("/proc/sys/kernel/pid_max"); err == nil {
		if n, err := strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64); err == nil {
			stats.MaxPID = &n
		}
	}
	if data, err := os.ReadFile("/proc/loadavg"); err == nil {
		// 0.20 0.18 0.12 1/80 11206
		if fields := strings.Fields(string(data)); len(fields) > 3 {
			_, all, _ := strings.Cut(fields[3], "/")
			if n, err := strconv.ParseInt(all, 10, 64); err == nil {
				stats.NumOfRunningProcesses = &n
			}
		}
	}
	return stats
}

// fileSystem is how full the file system at path is.
func fileSystem(path string) (*statsapi.FsStats, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(path, &s); err != nil {
		return nil, &os.PathError{Op: "statfs", Path: path, Err: err}
	}
	block := uint64(s.Bsize)
	available, capacity, used := s.Bavail*block, s.Blocks*block, (s.Blocks-s.Bfree)*block
	inodes, inodesFree, inodesUsed := s.Files, s.Ffree, s.Files-s.Ffree
	return &statsapi.FsStats{
		Time: metav1.Now(), AvailableBytes: &available, CapacityBytes: &capacity, UsedBytes: &used,
		Inodes: &inodes, InodesFree: &inodesFree, InodesUsed: &inodesUsed,
	}, nil
}

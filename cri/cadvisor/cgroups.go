package cadvisor

import (
	"maps"
	"slices"
	"strconv"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/internal/cgstat"
)

// ofCgroups are the metrics that pods and containers have alike.
var ofCgroups = slices.Concat(cpuFamilies, memoryFamilies, deviceFamilies, pressureFamilies)

var cpuFamilies = []family[*cgstat.Usage]{
	{
		name: "container_cpu_usage_seconds_total", help: "Processor time used, in seconds.", kind: counter, labels: []string{"cpu"},
		of: func(u *cgstat.Usage) []point {
			return []point{{[]string{"total"}, uint64(u.CPU.Total / time.Second)}}
		},
	},
	{
		name: "container_cpu_user_seconds_total", help: "Processor time used outside of the kernel, in seconds.", kind: counter,
		of: func(u *cgstat.Usage) []point { return seconds(u.CPU.User) },
	},
	{
		name: "container_cpu_system_seconds_total", help: "Processor time used in the kernel, in seconds.", kind: counter,
		of: func(u *cgstat.Usage) []point { return seconds(u.CPU.System) },
	},
	{
		name: "container_cpu_cfs_periods_total", help: "Periods of the processor time's quota that have passed.", kind: counter,
		of: func(u *cgstat.Usage) []point { return one(u.CPU.Periods) },
	},
	{
		name: "container_cpu_cfs_throttled_periods_total", help: "Periods that the quota cut short.", kind: counter,
		of: func(u *cgstat.Usage) []point { return one(u.CPU.ThrottledPeriods) },
	},
	{
		name: "container_cpu_cfs_throttled_seconds_total", help: "Time that the quota made tasks wait, in seconds.", kind: counter,
		of: func(u *cgstat.Usage) []point { return seconds(u.CPU.Throttled) },
	},
}

// bytesOf makes a gauge in bytes.
func bytesOf(name, help string, of func(*cgstat.Memory) uint64) family[*cgstat.Usage] {
	return family[*cgstat.Usage]{name: name, help: help, kind: gauge, of: func(u *cgstat.Usage) []point { return one(of(&u.Memory)) }}
}

var memoryFamilies = []family[*cgstat.Usage]{
	bytesOf("container_memory_usage_bytes", "Memory in use, in bytes, all of it.", func(m *cgstat.Memory) uint64 { return m.Used }),
	bytesOf("container_memory_working_set_bytes", "Memory in use, in bytes, less inactive file pages.",
		func(m *cgstat.Memory) uint64 { return m.WorkingSet }),
	bytesOf("container_memory_max_usage_bytes", "The most memory that was ever in use, in bytes.",
		func(m *cgstat.Memory) uint64 { return m.Peak }),
	bytesOf("container_memory_rss", "Anonymous memory, in bytes.", func(m *cgstat.Memory) uint64 { return m.RSS }),
	bytesOf("container_memory_cache", "File pages, in bytes.", func(m *cgstat.Memory) uint64 { return m.Cache }),
	bytesOf("container_memory_mapped_file", "File pages that are mapped, in bytes.", func(m *cgstat.Memory) uint64 { return m.Mapped }),
	bytesOf("container_memory_kernel_usage", "Memory of the kernel's for these tasks, in bytes.",
		func(m *cgstat.Memory) uint64 { return m.Kernel }),
	bytesOf("container_memory_swap", "Swap space in use, in bytes.", func(m *cgstat.Memory) uint64 { return m.Swap }),
	bytesOf("container_memory_total_active_file_bytes", "File pages used lately, in bytes.",
		func(m *cgstat.Memory) uint64 { return m.ActiveFile }),
	bytesOf("container_memory_total_inactive_file_bytes", "File pages not used lately, in bytes.",
		func(m *cgstat.Memory) uint64 { return m.InactiveFile }),
	{
		name: "container_memory_failcnt", help: "How often the memory limit was hit.", kind: counter,
		of: func(u *cgstat.Usage) []point { return one(u.Memory.Failures) },
	},
	{
		name: "container_memory_failures_total", help: "Page faults.", kind: counter, labels: []string{"failure_type", "scope"},
		of: func(u *cgstat.Usage) []point {
			return []point{
				{[]string{"pgfault", "hierarchy"}, u.Memory.PageFaults},
				{[]string{"pgmajfault", "hierarchy"}, u.Memory.MajorPageFaults},
			}
		},
	},
	{
		name: "container_oom_events_total", help: "Processes that were killed for want of memory.", kind: counter,
		of: func(u *cgstat.Usage) []point { return one(u.Memory.OOMKills) },
	},
	hugepages("container_hugetlb_usage_bytes", "Huge pages in use, in bytes.", gauge, func(h cgstat.Hugepages) uint64 { return h.Used }),
	hugepages("container_hugetlb_max_usage_bytes", "The most huge pages that were ever in use, in bytes.", gauge,
		func(h cgstat.Hugepages) uint64 { return h.Peak }),
	hugepages("container_hugetlb_failcnt", "How often a huge page was refused.", counter,
		func(h cgstat.Hugepages) uint64 { return h.Failures }),
}

func hugepages(name, help string, kind runtimeapi.MetricType, of func(cgstat.Hugepages) uint64) family[*cgstat.Usage] {
	return family[*cgstat.Usage]{
		name: name, help: help, kind: kind, labels: []string{"pagesize"},
		of: func(u *cgstat.Usage) (out []point) {
			for _, size := range slices.Sorted(maps.Keys(u.Hugepages)) {
				out = append(out, point{[]string{size}, of(u.Hugepages[size])})
			}
			return out
		},
	}
}

// deviceOf makes a counter of block devices.
func deviceOf(name, help string, of func(*cgstat.Device) uint64) family[*cgstat.Usage] {
	return family[*cgstat.Usage]{
		name: name, help: help, kind: counter, labels: []string{"device"},
		of: func(u *cgstat.Usage) (out []point) {
			for i := range u.Devices {
				out = append(out, point{[]string{device(u.Devices[i].Name)}, of(&u.Devices[i])})
			}
			return out
		},
	}
}

var deviceFamilies = []family[*cgstat.Usage]{
	deviceOf("container_fs_reads_bytes_total", "Bytes read from block devices.", func(d *cgstat.Device) uint64 { return d.ReadBytes }),
	deviceOf("container_fs_reads_total", "Reads from block devices.", func(d *cgstat.Device) uint64 { return d.Reads }),
	deviceOf("container_fs_writes_bytes_total", "Bytes written to block devices.", func(d *cgstat.Device) uint64 { return d.WriteBytes }),
	deviceOf("container_fs_writes_total", "Writes to block devices.", func(d *cgstat.Device) uint64 { return d.Writes }),
	{
		name: "container_blkio_device_usage_total", help: "Bytes read from and written to block devices.", kind: counter,
		labels: []string{"device", "major", "minor", "operation"},
		of: func(u *cgstat.Usage) (out []point) {
			for _, d := range u.Devices {
				major, minor := strconv.FormatUint(d.Major, 10), strconv.FormatUint(d.Minor, 10)
				out = append(out,
					point{[]string{device(d.Name), major, minor, "Read"}, d.ReadBytes},
					point{[]string{device(d.Name), major, minor, "Write"}, d.WriteBytes})
			}
			return out
		},
	},
}

// pressureOf makes a counter of time lost waiting; no kernel that counts it, no point.
func pressureOf(name, help string, of func(*cgstat.Usage) *cgstat.Pressure,
	stall func(*cgstat.Pressure) cgstat.Stall,
) family[*cgstat.Usage] {
	return family[*cgstat.Usage]{
		name: name, help: help, kind: counter,
		of: func(u *cgstat.Usage) []point {
			p := of(u)
			if p == nil {
				return nil
			}
			return seconds(stall(p).Total)
		},
	}
}

var (
	some = func(p *cgstat.Pressure) cgstat.Stall { return p.Some }
	full = func(p *cgstat.Pressure) cgstat.Stall { return p.Full }

	cpuPressure    = func(u *cgstat.Usage) *cgstat.Pressure { return u.CPUPressure }
	memoryPressure = func(u *cgstat.Usage) *cgstat.Pressure { return u.MemoryPressure }
	ioPressure     = func(u *cgstat.Usage) *cgstat.Pressure { return u.IOPressure }
)

var pressureFamilies = []family[*cgstat.Usage]{
	pressureOf("container_pressure_cpu_waiting_seconds_total", "Time in which a task waited for a processor, in seconds.", cpuPressure, some),
	pressureOf("container_pressure_cpu_stalled_seconds_total", "Time in which all tasks waited for a processor, in seconds.", cpuPressure,
		full),
	pressureOf("container_pressure_memory_waiting_seconds_total", "Time in which a task waited for memory, in seconds.", memoryPressure, some),
	pressureOf("container_pressure_memory_stalled_seconds_total", "Time in which all tasks waited for memory, in seconds.", memoryPressure,
		full),
	pressureOf("container_pressure_io_waiting_seconds_total", "Time in which a task waited for a device, in seconds.", ioPressure, some),
	pressureOf("container_pressure_io_stalled_seconds_total", "Time in which all tasks waited for a device, in seconds.", ioPressure, full),
}

package ocispec

import (
	"github.com/opencontainers/runtime-spec/specs-go"
)

// Resources are limits; zero values mean unset. The fields are those of pod.Resources.
type Resources struct {
	CPUPeriod, CPUQuota, CPUShares int64 // microseconds, microseconds, weight
	MemoryLimit, MemorySwapLimit   int64 // bytes
	OOMScoreAdj                    int64
	CpusetCPUs, CpusetMems         string
	Hugepages                      map[string]uint64 // page size ("2MB") to bytes
	Unified                        map[string]string // cgroup v2 files
}

func (r Resources) oomScoreAdj() *int {
	adj := int(r.OOMScoreAdj)
	return &adj
}

// Linux is the resources as the runtime's update call takes them.
func (r Resources) Linux() *specs.LinuxResources { return r.linux() }

func (r Resources) linux() *specs.LinuxResources {
	out := &specs.LinuxResources{Unified: r.Unified}
	cpu := specs.LinuxCPU{Cpus: r.CpusetCPUs, Mems: r.CpusetMems}
	if r.CPUShares != 0 {
		v := uint64(r.CPUShares)
		cpu.Shares = &v
	}
	if r.CPUQuota != 0 {
		cpu.Quota = &r.CPUQuota
	}
	if r.CPUPeriod != 0 {
		v := uint64(r.CPUPeriod)
		cpu.Period = &v
	}
	if cpu != (specs.LinuxCPU{Cpus: r.CpusetCPUs, Mems: r.CpusetMems}) || r.CpusetCPUs != "" || r.CpusetMems != "" {
		out.CPU = &cpu
	}
	if r.MemoryLimit != 0 || r.MemorySwapLimit != 0 {
		out.Memory = &specs.LinuxMemory{}
		if r.MemoryLimit != 0 {
			out.Memory.Limit = &r.MemoryLimit
		}
		if r.MemorySwapLimit != 0 {
			out.Memory.Swap = &r.MemorySwapLimit
		}
	}
	for _, size := range sortedKeys(r.Hugepages) {
		out.HugepageLimits = append(out.HugepageLimits, specs.LinuxHugepageLimit{Pagesize: size, Limit: r.Hugepages[size]})
	}
	return out
}

// deviceRules is the device cgroup: nothing, then the devices that every container may
// use, then the caller's.
func deviceRules(in Input) []specs.LinuxDeviceCgroup {
	if in.AllDevices {
		return []specs.LinuxDeviceCgroup{{Allow: true, Access: "rwm"}}
	}
	rules := []specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}}
	for _, d := range in.Devices {
		major, minor := d.Node.Major, d.Node.Minor
		rules = append(rules, specs.LinuxDeviceCgroup{
			Allow: true, Type: d.Node.Type, Major: &major, Minor: &minor, Access: d.Permissions,
		})
	}
	return rules
}

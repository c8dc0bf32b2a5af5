package base

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/cgroups"
	devices "github.com/opencontainers/cgroups/devices/config"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/coracle-project/coracle/runtime"
)

// CgroupConfig is the cgroup that a configuration asks for, by path and with its limits
// (config-linux.md#control-groups). The devices that every container has are allowed.
// ErrInvalidSpec if a limit cannot be expressed.
func CgroupConfig(id string, linux *specs.Linux) (*cgroups.Cgroup, error) {
	c := &cgroups.Cgroup{Name: id, Resources: &cgroups.Resources{}}
	if linux != nil {
		if linux.CgroupsPath != "" {
			c.Name, c.Path = "", cleanCgroupPath(linux.CgroupsPath)
		}
		var err error
		if c.Resources, err = limits(linux.Resources); err != nil {
			return nil, err
		}
	}
	c.Resources.Devices = append(c.Resources.Devices, alwaysAllowed()...)
	return c, nil
}

// cleanCgroupPath keeps a relative path relative, and ".." in both from leading above the
// hierarchy's root.
func cleanCgroupPath(path string) string {
	clean := filepath.Clean("/" + path)
	if filepath.IsAbs(path) {
		return clean
	}
	return strings.TrimPrefix(clean, "/")
}

// limits are a configuration's linux.resources as the cgroup library has them. An absent one
// is the zero value, which the library leaves as it is.
func limits(r *specs.LinuxResources) (*cgroups.Resources, error) {
	out := &cgroups.Resources{}
	if r == nil {
		return out, nil
	}
	for i := range r.Devices {
		rule, err := deviceRule(&r.Devices[i])
		if err != nil {
			return nil, fmt.Errorf("%w: linux.resources.devices[%d]: %w", runtime.ErrInvalidSpec, i, err)
		}
		out.Devices = append(out.Devices, rule)
	}
	memoryLimits(out, r.Memory)
	cpuLimits(out, r.CPU)
	blockIOLimits(out, r.BlockIO)
	if r.Pids != nil {
		out.PidsLimit = r.Pids.Limit
	}
	for _, l := range r.HugepageLimits {
		out.HugetlbLimit = append(out.HugetlbLimit, &cgroups.HugepageLimit{Pagesize: l.Pagesize, Limit: l.Limit})
	}
	for device, l := range r.Rdma {
		if out.Rdma == nil {
			out.Rdma = map[string]cgroups.LinuxRdma{}
		}
		out.Rdma[device] = cgroups.LinuxRdma{HcaHandles: l.HcaHandles, HcaObjects: l.HcaObjects}
	}
	if n := r.Network; n != nil {
		set(&out.NetClsClassid, n.ClassID)
		for _, p := range n.Priorities {
			out.NetPrioIfpriomap = append(out.NetPrioIfpriomap, &cgroups.IfPrioMap{Interface: p.Name, Priority: int64(p.Priority)})
		}
	}
	if len(r.Unified) > 0 {
		out.Unified = maps.Clone(r.Unified)
	}
	return out, nil
}

// HasUnified refuses linux.resources.unified where there is none.
func HasUnified(r *specs.LinuxResources) error {
	if r != nil && len(r.Unified) > 0 && !cgroups.IsCgroup2UnifiedMode() {
		return fmt.Errorf("%w: linux.resources.unified %q needs cgroup version 2, this machine has version 1; use the other fields of "+
			"linux.resources",
			runtime.ErrInvalidSpec, slices.Sorted(maps.Keys(r.Unified)))
	}
	return nil
}

// set copies a value that is there.
func set[T any](to, from *T) {
	if from != nil {
		*to = *from
	}
}

func memoryLimits(out *cgroups.Resources, m *specs.LinuxMemory) {
	if m == nil {
		return
	}
	set(&out.Memory, m.Limit)
	set(&out.MemoryReservation, m.Reservation)
	set(&out.MemorySwap, m.Swap)
	out.MemorySwappiness = m.Swappiness
	set(&out.OomKillDisable, m.DisableOOMKiller)
	set(&out.MemoryCheckBeforeUpdate, m.CheckBeforeUpdate)
}

func cpuLimits(out *cgroups.Resources, c *specs.LinuxCPU) {
	if c == nil {
		return
	}
	if c.Shares != nil {
		out.CpuShares = *c.Shares
		out.CpuWeight = cgroups.ConvertCPUSharesToCgroupV2Value(*c.Shares)
	}
	set(&out.CpuQuota, c.Quota)
	set(&out.CpuPeriod, c.Period)
	set(&out.CpuRtRuntime, c.RealtimeRuntime)
	set(&out.CpuRtPeriod, c.RealtimePeriod)
	out.CpuBurst, out.CPUIdle = c.Burst, c.Idle
	out.CpusetCpus, out.CpusetMems = c.Cpus, c.Mems
}

func blockIOLimits(out *cgroups.Resources, b *specs.LinuxBlockIO) {
	if b == nil {
		return
	}
	set(&out.BlkioWeight, b.Weight)
	set(&out.BlkioLeafWeight, b.LeafWeight)
	for _, d := range b.WeightDevice {
		var weight, leaf uint16
		set(&weight, d.Weight)
		set(&leaf, d.LeafWeight)
		out.BlkioWeightDevice = append(out.BlkioWeightDevice, cgroups.NewWeightDevice(d.Major, d.Minor, weight, leaf))
	}
	throttle := func(list []specs.LinuxThrottleDevice) (out []*cgroups.ThrottleDevice) {
		for _, d := range list {
			out = append(out, cgroups.NewThrottleDevice(d.Major, d.Minor, d.Rate))
		}
		return out
	}
	out.BlkioThrottleReadBpsDevice = throttle(b.ThrottleReadBpsDevice)
	out.BlkioThrottleWriteBpsDevice = throttle(b.ThrottleWriteBpsDevice)
	out.BlkioThrottleReadIOPSDevice = throttle(b.ThrottleReadIOPSDevice)
	out.BlkioThrottleWriteIOPSDevice = throttle(b.ThrottleWriteIOPSDevice)
}

// deviceRule translates one rule. An a in access is ignored, as by runc.
func deviceRule(d *specs.LinuxDeviceCgroup) (*devices.Rule, error) {
	rule := &devices.Rule{
		Major: devices.Wildcard, Minor: devices.Wildcard,
		Permissions: devices.Permissions(strings.ReplaceAll(d.Access, "a", "")), Allow: d.Allow,
	}
	switch d.Type {
	case "", "a":
		rule.Type = devices.WildcardDevice
	case "b":
		rule.Type = devices.BlockDevice
	case "c":
		rule.Type = devices.CharDevice
	default:
		return nil, fmt.Errorf("type %q is unknown, use a, b or c", d.Type)
	}
	if rule.Permissions == "" {
		return nil, fmt.Errorf("access is empty, use some of r, w and m")
	}
	set(&rule.Major, d.Major)
	set(&rule.Minor, d.Minor)
	return rule, nil
}

// alwaysAllowed are the devices that no rules of a configuration take away: those of
// config-linux.md#default-devices, terminals, and what runc's users have come to rely on,
// mknod of any device and /dev/net/tun.
func alwaysAllowed() []*devices.Rule {
	char := func(major, minor int64, access devices.Permissions) *devices.Rule {
		return &devices.Rule{Type: devices.CharDevice, Major: major, Minor: minor, Permissions: access, Allow: true}
	}
	const any = devices.Wildcard
	return []*devices.Rule{
		char(any, any, "m"),
		{Type: devices.BlockDevice, Major: any, Minor: any, Permissions: "m", Allow: true},
		char(1, 3, "rwm"),     // null
		char(1, 8, "rwm"),     // random
		char(1, 7, "rwm"),     // full
		char(5, 0, "rwm"),     // tty
		char(1, 5, "rwm"),     // zero
		char(1, 9, "rwm"),     // urandom
		char(136, any, "rwm"), // the terminals of devpts
		char(5, 2, "rwm"),     // ptmx
		char(10, 200, "rwm"),  // net/tun
	}
}

package explain

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/coracle-project/coracle/runtime/plan"
)

// cgroupName is the container's cgroup, below the mount points.
func cgroupName(id string, spec *specs.Spec) string {
	if spec.Linux == nil || spec.Linux.CgroupsPath == "" {
		return "/" + id
	}
	return path.Clean("/" + spec.Linux.CgroupsPath)
}

// usualCgroup are the cgroups of a host as systemd sets it up.
func usualCgroup(version int, name string) plan.Cgroup {
	const top = "/sys/fs/cgroup"
	if version == 2 {
		return plan.Cgroup{Unified: true, Own: top + name}
	}
	var c plan.Cgroup
	for _, h := range []string{
		"blkio", "cpu,cpuacct", "cpuset", "devices", "freezer", "hugetlb", "memory", "net_cls,net_prio", "perf_event",
		"pids", "rdma",
	} {
		at := path.Join(top, h, name)
		c.Tasks = append(c.Tasks, at+"/tasks")
		own := plan.Hierarchy{Name: h, Options: h, Path: at}
		if strings.Contains(h, ",") {
			own.Links = strings.Split(h, ",")
		}
		c.Hierarchies = append(c.Hierarchies, own)
	}
	at := path.Join(top, "systemd", name)
	c.Tasks = append(c.Tasks, at+"/tasks")
	c.Hierarchies = append(c.Hierarchies, plan.Hierarchy{Name: "systemd", Options: "none,name=systemd", Path: at})
	return c
}

func newCgroup(spec *specs.Spec, c plan.Cgroup) Cgroup {
	e := Cgroup{Version: 1, Paths: []string{}, Limits: []Setting{}, Devices: []string{}}
	for _, t := range c.Tasks {
		e.Paths = append(e.Paths, path.Dir(t))
	}
	if c.Own != "" && !slices.Contains(e.Paths, c.Own) {
		e.Paths = append(e.Paths, c.Own)
	}
	if c.Unified {
		e.Version = 2
	}
	r := &specs.LinuxResources{}
	if spec.Linux != nil && spec.Linux.Resources != nil {
		r = spec.Linux.Resources
	}
	w := limitWriter{&e, c.Unified}
	w.memory(r.Memory)
	w.cpu(r.CPU)
	if r.Pids != nil && r.Pids.Limit != nil && *r.Pids.Limit != 0 {
		w.set("pids.max", "pids.max", most(*r.Pids.Limit))
	}
	w.io(r.BlockIO)
	w.others(r)
	for _, name := range slices.Sorted(maps.Keys(r.Unified)) {
		w.set("", name, r.Unified[name])
	}
	for _, d := range r.Devices {
		e.Devices = append(e.Devices, deviceRule(d))
	}
	e.Devices = append(e.Devices, "allow the default ones: null, zero, full, random, urandom, tty, console, pts, ptmx; mknod of all")
	return e
}

// limitWriter collects which file gets which value; the names differ by version.
type limitWriter struct {
	to      *Cgroup
	unified bool
}

// set does nothing for a version that has no such file.
func (w limitWriter) set(v1, v2, value string) {
	name := v1
	if w.unified {
		name = v2
	}
	if name != "" {
		w.to.Limits = append(w.to.Limits, Setting{name, value})
	}
}

// most writes a limit; none is -1.
func most(n int64) string {
	if n < 0 {
		return "max"
	}
	return fmt.Sprint(n)
}

func (w limitWriter) memory(m *specs.LinuxMemory) {
	if m == nil {
		return
	}
	if m.Limit != nil && *m.Limit != 0 {
		w.set("memory.limit_in_bytes", "memory.max", most(*m.Limit))
	}
	if m.Reservation != nil && *m.Reservation != 0 {
		w.set("memory.soft_limit_in_bytes", "memory.low", most(*m.Reservation))
	}
	if m.Swap != nil && *m.Swap != 0 {
		alone := *m.Swap // version 2 counts swap alone
		if alone > 0 && m.Limit != nil && *m.Limit > 0 {
			alone -= *m.Limit
		}
		if w.unified {
			w.set("", "memory.swap.max", most(alone))
		} else {
			w.set("memory.memsw.limit_in_bytes", "", most(*m.Swap))
		}
	}
	if m.Swappiness != nil {
		w.set("memory.swappiness", "", fmt.Sprint(*m.Swappiness))
	}
	if m.DisableOOMKiller != nil && *m.DisableOOMKiller {
		w.set("memory.oom_control", "", "1")
	}
}

func (w limitWriter) cpu(c *specs.LinuxCPU) {
	if c == nil {
		return
	}
	if c.Shares != nil && *c.Shares != 0 {
		if w.unified {
			w.set("", "cpu.weight", fmt.Sprint(cgroups.ConvertCPUSharesToCgroupV2Value(*c.Shares)))
		} else {
			w.set("cpu.shares", "", fmt.Sprint(*c.Shares))
		}
	}
	period, quota := uint64(100_000), "max"
	if c.Period != nil && *c.Period != 0 {
		period = *c.Period
		w.set("cpu.cfs_period_us", "", fmt.Sprint(period))
	}
	if c.Quota != nil && *c.Quota != 0 {
		quota = most(*c.Quota)
		w.set("cpu.cfs_quota_us", "", fmt.Sprint(*c.Quota))
	}
	if c.Quota != nil && *c.Quota != 0 || c.Period != nil && *c.Period != 0 {
		w.set("", "cpu.max", fmt.Sprintf("%s %d", quota, period))
	}
	if c.Burst != nil {
		w.set("cpu.cfs_burst_us", "cpu.max.burst", fmt.Sprint(*c.Burst))
	}
	if c.Idle != nil {
		w.set("cpu.idle", "cpu.idle", fmt.Sprint(*c.Idle))
	}
	if c.RealtimePeriod != nil {
		w.set("cpu.rt_period_us", "", fmt.Sprint(*c.RealtimePeriod))
	}
	if c.RealtimeRuntime != nil {
		w.set("cpu.rt_runtime_us", "", fmt.Sprint(*c.RealtimeRuntime))
	}
	if c.Cpus != "" {
		w.set("cpuset.cpus", "cpuset.cpus", c.Cpus)
	}
	if c.Mems != "" {
		w.set("cpuset.mems", "cpuset.mems", c.Mems)
	}
}

func (w limitWriter) io(b *specs.LinuxBlockIO) {
	if b == nil {
		return
	}
	if b.Weight != nil && *b.Weight != 0 {
		if w.unified {
			w.set("", "io.weight", fmt.Sprint(cgroups.ConvertBlkIOToIOWeightValue(*b.Weight)))
		} else {
			w.set("blkio.weight", "", fmt.Sprint(*b.Weight))
		}
	}
	for _, list := range []struct {
		v1, v2  string
		devices []specs.LinuxThrottleDevice
	}{
		{"blkio.throttle.read_bps_device", "rbps", b.ThrottleReadBpsDevice},
		{"blkio.throttle.write_bps_device", "wbps", b.ThrottleWriteBpsDevice},
		{"blkio.throttle.read_iops_device", "riops", b.ThrottleReadIOPSDevice},
		{"blkio.throttle.write_iops_device", "wiops", b.ThrottleWriteIOPSDevice},
	} {
		for _, d := range list.devices {
			if w.unified {
				w.set("", "io.max", fmt.Sprintf("%d:%d %s=%d", d.Major, d.Minor, list.v2, d.Rate))
			} else {
				w.set(list.v1, "", fmt.Sprintf("%d:%d %d", d.Major, d.Minor, d.Rate))
			}
		}
	}
}

func (w limitWriter) others(r *specs.LinuxResources) {
	for _, h := range r.HugepageLimits {
		w.set("hugetlb."+h.Pagesize+".limit_in_bytes", "hugetlb."+h.Pagesize+".max", fmt.Sprint(h.Limit))
	}
	for _, name := range slices.Sorted(maps.Keys(r.Rdma)) {
		value := name
		if n := r.Rdma[name].HcaHandles; n != nil {
			value += fmt.Sprintf(" hca_handle=%d", *n)
		}
		if n := r.Rdma[name].HcaObjects; n != nil {
			value += fmt.Sprintf(" hca_object=%d", *n)
		}
		w.set("rdma.max", "rdma.max", value)
	}
	if r.Network == nil {
		return
	}
	if r.Network.ClassID != nil {
		w.set("net_cls.classid", "", fmt.Sprint(*r.Network.ClassID))
	}
	for _, p := range r.Network.Priorities {
		w.set("net_prio.ifpriomap", "", fmt.Sprintf("%s %d", p.Name, p.Priority))
	}
}

// deviceRule writes a rule as devices.allow of version 1 takes it.
func deviceRule(d specs.LinuxDeviceCgroup) string {
	verb, kind := "deny", d.Type
	if d.Allow {
		verb = "allow"
	}
	if kind == "" {
		kind = "a"
	}
	number := func(n *int64) string {
		if n == nil || *n < 0 {
			return "*"
		}
		return fmt.Sprint(*n)
	}
	return fmt.Sprintf("%s %s %s:%s %s", verb, kind, number(d.Major), number(d.Minor), d.Access)
}

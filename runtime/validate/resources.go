package validate

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// Resources checks the resource limits of a configuration or of an update. nil is valid.
func Resources(r *specs.LinuxResources) error {
	if r == nil {
		return nil
	}
	for i := range r.Devices {
		if err := checkDeviceRule(i, &r.Devices[i]); err != nil {
			return err
		}
	}
	if err := checkMemory(r.Memory); err != nil {
		return err
	}
	if err := checkCPU(r.CPU); err != nil {
		return err
	}
	if p := r.Pids; p != nil && p.Limit != nil && *p.Limit < -1 {
		return invalid("linux.resources.pids.limit", "%d is out of range, use a number or -1 for no limit", *p.Limit)
	}
	if err := checkBlockIO(r.BlockIO); err != nil {
		return err
	}
	for i, h := range r.HugepageLimits {
		if !isPageSize(h.Pagesize) {
			return invalid(fmt.Sprintf("linux.resources.hugepageLimits[%d].pageSize", i), "%q is no size of pages, write it like 2MB", h.Pagesize)
		}
	}
	if err := checkPriorities(r.Network); err != nil {
		return err
	}
	if err := checkRdma(r.Rdma); err != nil {
		return err
	}
	return checkUnified(r.Unified)
}

func checkPriorities(n *specs.LinuxNetwork) error {
	if n == nil {
		return nil
	}
	for i, p := range n.Priorities {
		if !isInterface(p.Name) {
			return invalid(fmt.Sprintf("linux.resources.network.priorities[%d].name", i), "%q is no name of a network interface", p.Name)
		}
	}
	return nil
}

func checkRdma(limits map[string]specs.LinuxRdma) error {
	for _, name := range slices.Sorted(maps.Keys(limits)) {
		if name == "" || strings.ContainsAny(name, " \t\n/\x00") {
			return invalid("linux.resources.rdma", "%q is no name of a device, write it like mlx5_1", name)
		}
		if limit := limits[name]; limit.HcaHandles == nil && limit.HcaObjects == nil {
			return invalid("linux.resources.rdma."+name, "has no limit, set hcaHandles or hcaObjects")
		}
	}
	return nil
}

func checkUnified(files map[string]string) error {
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/\x00") {
			return invalid("linux.resources.unified", "%q is no file of a cgroup, write it like memory.high", name)
		}
		if err := checkText("linux.resources.unified."+name, files[name]); err != nil {
			return err
		}
	}
	return nil
}

func checkDeviceRule(i int, d *specs.LinuxDeviceCgroup) error {
	bad := func(field, format string, args ...any) error {
		return invalid(fmt.Sprintf("linux.resources.devices[%d].%s", i, field), format, args...)
	}
	// An a, which runc passes over, is found in configurations.
	if strings.Trim(d.Access, "a") == "" || strings.Trim(d.Access, "rwma") != "" {
		return bad("access", "%q is not made of the letters r, w and m", d.Access)
	}
	switch d.Type {
	case "", "a", "b", "c", "u", "p":
	default:
		return bad("type", "%q is no device type, use a, b or c", d.Type)
	}
	if d.Major != nil && *d.Major < -1 {
		return bad("major", "%d is out of range, use a number or -1 for all", *d.Major)
	}
	if d.Minor != nil && *d.Minor < -1 {
		return bad("minor", "%d is out of range, use a number or -1 for all", *d.Minor)
	}
	return nil
}

func checkMemory(m *specs.LinuxMemory) error {
	if m == nil {
		return nil
	}
	for _, v := range [...]struct {
		name  string
		bytes *int64
	}{{"limit", m.Limit}, {"reservation", m.Reservation}, {"swap", m.Swap}} {
		if v.bytes != nil && *v.bytes < -1 {
			return invalid("linux.resources.memory."+v.name, "%d is out of range, use bytes or -1 for no limit", *v.bytes)
		}
	}
	if m.Limit != nil && m.Swap != nil && *m.Swap > 0 && *m.Limit > 0 && *m.Swap < *m.Limit {
		return invalid("linux.resources.memory.swap", "%d is below memory.limit %d, it counts memory and swap together", *m.Swap, *m.Limit)
	}
	if m.Swappiness != nil && *m.Swappiness > 100 {
		return invalid("linux.resources.memory.swappiness", "%d is out of range, use 0 to 100", *m.Swappiness)
	}
	return nil
}

func checkCPU(c *specs.LinuxCPU) error {
	if c == nil {
		return nil
	}
	// The kernel takes what is out of range for the nearest bound, and says nothing.
	if c.Shares != nil && *c.Shares != 0 && (*c.Shares < 2 || *c.Shares > 262144) {
		return invalid("linux.resources.cpu.shares", "%d is out of range, use 2 to 262144", *c.Shares)
	}
	if c.Quota != nil && *c.Quota != -1 && *c.Quota < 0 {
		return invalid("linux.resources.cpu.quota", "%d is out of range, use microseconds or -1 for no limit", *c.Quota)
	}
	if c.Quota != nil && *c.Quota > 0 && *c.Quota < 1000 {
		return invalid("linux.resources.cpu.quota", "%d is out of range, the least is 1000 microseconds", *c.Quota)
	}
	if c.Period != nil && *c.Period != 0 && (*c.Period < 1000 || *c.Period > 1_000_000) {
		return invalid("linux.resources.cpu.period", "%d is out of range, use 1000 to 1000000 microseconds", *c.Period)
	}
	if c.Idle != nil && *c.Idle != 0 && *c.Idle != 1 {
		return invalid("linux.resources.cpu.idle", "%d is out of range, use 0 or 1", *c.Idle)
	}
	if !isList(c.Cpus) {
		return invalid("linux.resources.cpu.cpus", "%q is no list of CPUs, write it like 0-3,7", c.Cpus)
	}
	if !isList(c.Mems) {
		return invalid("linux.resources.cpu.mems", "%q is no list of memory nodes, write it like 0-1", c.Mems)
	}
	return nil
}

func checkBlockIO(b *specs.LinuxBlockIO) error {
	if b == nil {
		return nil
	}
	weight := func(field string, w *uint16) error {
		if w != nil && *w != 0 && (*w < 10 || *w > 1000) {
			return invalid("linux.resources.blockIO."+field, "%d is out of range, use 10 to 1000", *w)
		}
		return nil
	}
	device := func(field string, major, minor int64) error {
		if major < 0 || minor < 0 {
			return invalid("linux.resources.blockIO."+field, "%d:%d is no device number, use positive ones", major, minor)
		}
		return nil
	}
	if err := weight("weight", b.Weight); err != nil {
		return err
	}
	if err := weight("leafWeight", b.LeafWeight); err != nil {
		return err
	}
	for i, d := range b.WeightDevice {
		f := fmt.Sprintf("weightDevice[%d]", i)
		if err := device(f, d.Major, d.Minor); err != nil {
			return err
		}
		if err := weight(f+".weight", d.Weight); err != nil {
			return err
		}
		if err := weight(f+".leafWeight", d.LeafWeight); err != nil {
			return err
		}
	}
	for _, list := range [...]struct {
		name    string
		devices []specs.LinuxThrottleDevice
	}{
		{"throttleReadBpsDevice", b.ThrottleReadBpsDevice},
		{"throttleWriteBpsDevice", b.ThrottleWriteBpsDevice},
		{"throttleReadIOPSDevice", b.ThrottleReadIOPSDevice},
		{"throttleWriteIOPSDevice", b.ThrottleWriteIOPSDevice},
	} {
		for i, d := range list.devices {
			if err := device(fmt.Sprintf("%s[%d]", list.name, i), d.Major, d.Minor); err != nil {
				return err
			}
		}
	}
	return nil
}

// isList tells a list of numbers and ranges as cpuset(7) takes it, or an empty one.
func isList(s string) bool {
	if s = strings.TrimSpace(s); s == "" {
		return true
	}
	for part := range strings.SplitSeq(s, ",") {
		first, last, ranged := strings.Cut(part, "-")
		from, err := strconv.ParseUint(strings.TrimSpace(first), 10, 16)
		if err != nil {
			return false
		}
		if !ranged {
			continue
		}
		last, _, _ = strings.Cut(last, ":") // a step, as 0-7:2
		if to, err := strconv.ParseUint(strings.TrimSpace(last), 10, 16); err != nil || to < from {
			return false
		}
	}
	return true
}

// isPageSize tells a size as config-linux.md wants it: 64KB, 2MB, 1GB.
func isPageSize(s string) bool {
	digits := strings.TrimRight(s, "KMGB")
	n, err := strconv.ParseUint(digits, 10, 32)
	unit := s[len(digits):]
	return err == nil && n > 0 && digits[0] != '+' && (unit == "KB" || unit == "MB" || unit == "GB")
}

// isInterface tells what the kernel takes for a name of a network interface.
func isInterface(name string) bool {
	const most = 15 // IFNAMSIZ with the zero byte
	return name != "" && len(name) <= most && name != "." && name != ".." && !strings.ContainsAny(name, "/: \t\n\x00")
}

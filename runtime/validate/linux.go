package validate

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
)

var namespaceTypes = []specs.LinuxNamespaceType{
	specs.PIDNamespace, specs.NetworkNamespace, specs.MountNamespace, specs.IPCNamespace,
	specs.UTSNamespace, specs.UserNamespace, specs.CgroupNamespace, specs.TimeNamespace,
}

func checkLinux(spec *specs.Spec) error {
	l := spec.Linux
	has, err := checkNamespaces(l.Namespaces)
	if err != nil {
		return err
	}
	if err := checkUTS(spec, has[specs.UTSNamespace]); err != nil {
		return err
	}
	if err := checkUserNamespace(l); err != nil {
		return err
	}
	if err := checkTime(l, has[specs.TimeNamespace]); err != nil {
		return err
	}
	if err := checkPaths("linux.maskedPaths", l.MaskedPaths); err != nil {
		return err
	}
	if err := checkPaths("linux.readonlyPaths", l.ReadonlyPaths); err != nil {
		return err
	}
	for i := range l.Devices {
		if err := checkDevice(i, &l.Devices[i]); err != nil {
			return err
		}
	}
	if err := checkSysctls(l); err != nil {
		return err
	}
	if err := checkNetDevices(l, has[specs.NetworkNamespace]); err != nil {
		return err
	}
	if p := l.CgroupsPath; slices.Contains(strings.Split(p, "/"), "..") {
		return invalid("linux.cgroupsPath", "%q must not contain ..", p)
	}
	if err := (texts{{"linux.cgroupsPath", l.CgroupsPath}, {"linux.mountLabel", l.MountLabel}}).check(); err != nil {
		return err
	}
	if !slices.Contains(propagations, l.RootfsPropagation) {
		return invalid("linux.rootfsPropagation", "%q is unknown, use private, slave, shared or unbindable, or one of them with an r before it",
			l.RootfsPropagation)
	}
	if err := checkPersonality(l.Personality); err != nil {
		return err
	}
	if err := checkRdt(l.IntelRdt); err != nil {
		return err
	}
	if err := checkMemoryPolicy(l.MemoryPolicy); err != nil {
		return err
	}
	if err := checkSeccomp(l.Seccomp); err != nil {
		return err
	}
	return Resources(l.Resources)
}

func checkPaths(field string, paths []string) error {
	for i, p := range paths {
		if !filepath.IsAbs(p) || hasZero(p) {
			return invalid(fmt.Sprintf("%s[%d]", field, i), "%q is not an absolute path", p)
		}
	}
	return nil
}

func checkPersonality(p *specs.LinuxPersonality) error {
	switch {
	case p == nil:
	case p.Domain != specs.PerLinux && p.Domain != specs.PerLinux32:
		return invalid("linux.personality.domain", "%q is unknown, use LINUX or LINUX32", p.Domain)
	case len(p.Flags) > 0:
		return invalid("linux.personality.flags", "%q is unknown, the specification has no flags; remove it", p.Flags)
	}
	return nil
}

var propagations = []string{"", "private", "rprivate", "slave", "rslave", "shared", "rshared", "unbindable", "runbindable"}

func checkNamespaces(list []specs.LinuxNamespace) (map[specs.LinuxNamespaceType]bool, error) {
	has := make(map[specs.LinuxNamespaceType]bool, len(list))
	for i, ns := range list {
		field := fmt.Sprintf("linux.namespaces[%d]", i)
		if !slices.Contains(namespaceTypes, ns.Type) {
			return nil, invalid(field+".type", "%q is no namespace, use one of %v", ns.Type, namespaceTypes)
		}
		if has[ns.Type] {
			return nil, invalid(field+".type", "%q is a duplicate, remove one", ns.Type)
		}
		has[ns.Type] = true
		if ns.Path == "" {
			continue
		}
		if !filepath.IsAbs(ns.Path) {
			return nil, invalid(field+".path", "%q is not absolute, begin it with /", ns.Path)
		}
		if err := checkText(field+".path", ns.Path); err != nil {
			return nil, err
		}
		if _, err := os.Stat(ns.Path); err != nil {
			return nil, invalid(field+".path", "%q cannot be joined: %w", ns.Path, err)
		}
	}
	return has, nil
}

// checkUTS checks the names of the host that the container sees.
func checkUTS(spec *specs.Spec, namespace bool) error {
	const most = 64 // __NEW_UTS_LEN
	for _, n := range [...]struct{ field, name string }{{"hostname", spec.Hostname}, {"domainname", spec.Domainname}} {
		switch {
		case n.name == "":
		case !namespace:
			return invalid(n.field, "%q needs a uts namespace, add one to linux.namespaces", n.name)
		case len(n.name) > most:
			return invalid(n.field, "%q… has %d bytes, at most %d are allowed", n.name[:most/2], len(n.name), most)
		case hasZero(n.name):
			return checkText(n.field, n.name)
		}
	}
	return nil
}

// checkTime checks the offsets of a time namespace, time_namespaces(7).
func checkTime(l *specs.Linux, namespace bool) error {
	for _, clock := range slices.Sorted(maps.Keys(l.TimeOffsets)) {
		switch field := "linux.timeOffsets." + clock; {
		case clock != "monotonic" && clock != "boottime":
			return invalid("linux.timeOffsets", "%q is no clock that can be set, use monotonic or boottime", clock)
		case !namespace:
			return invalid(field, "needs a time namespace, add one to linux.namespaces")
		case l.TimeOffsets[clock].Nanosecs >= 1_000_000_000:
			return invalid(field+".nanosecs", "%d is out of range, use less than a second", l.TimeOffsets[clock].Nanosecs)
		}
	}
	return nil
}

func checkDevice(i int, d *specs.LinuxDevice) error {
	bad := func(field, format string, args ...any) error {
		return invalid(fmt.Sprintf("linux.devices[%d].%s", i, field), format, args...)
	}
	if !filepath.IsAbs(d.Path) || hasZero(d.Path) {
		return bad("path", "%q is not an absolute path", d.Path)
	}
	switch d.Type {
	case "c", "u", "b", "p":
	default:
		return bad("type", "%q is no device type, use c, u, b or p", d.Type)
	}
	// As the kernel's dev_t has them.
	if d.Major < 0 || d.Major >= 1<<12 {
		return bad("major", "%d is out of range, use 0 to 4095", d.Major)
	}
	if d.Minor < 0 || d.Minor >= 1<<20 {
		return bad("minor", "%d is out of range, use 0 to 1048575", d.Minor)
	}
	for _, id := range [...]struct {
		name string
		id   *uint32
	}{{"uid", d.UID}, {"gid", d.GID}} {
		if id.id != nil {
			if err := checkID32(fmt.Sprintf("linux.devices[%d].%s", i, id.name), *id.id); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkNetDevices checks the interfaces that are moved into the container.
func checkNetDevices(l *specs.Linux, namespace bool) error {
	for _, name := range slices.Sorted(maps.Keys(l.NetDevices)) {
		if !isInterface(name) {
			return invalid("linux.netDevices", "%q is no name of a network interface", name)
		}
		if to := l.NetDevices[name].Name; to != "" && !isInterface(to) {
			return invalid("linux.netDevices."+name+".name", "%q is no name of a network interface", to)
		}
		if !namespace {
			return invalid("linux.netDevices."+name, "needs a network namespace, add one to linux.namespaces")
		}
	}
	return nil
}

package runtime

import (
	"fmt"
	"math"
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

func validateLinux(spec *specs.Spec) error {
	l := spec.Linux
	has := map[specs.LinuxNamespaceType]bool{}
	for i, ns := range l.Namespaces {
		field := fmt.Sprintf("linux.namespaces[%d]", i)
		if !slices.Contains(namespaceTypes, ns.Type) {
			return invalid(field+".type", "%q is no namespace, use one of %v", ns.Type, namespaceTypes)
		}
		if has[ns.Type] {
			return invalid(field+".type", "%q stands there twice", ns.Type)
		}
		has[ns.Type] = true
		if ns.Path != "" && !filepath.IsAbs(ns.Path) {
			return invalid(field+".path", "%q is not absolute, begin it with /", ns.Path)
		}
		if err := validateText(field+".path", ns.Path); err != nil {
			return err
		}
		if ns.Path != "" {
			if _, err := os.Stat(ns.Path); err != nil {
				return invalid(field+".path", "%q cannot be joined: %w", ns.Path, err)
			}
		}
	}
	if !has[specs.MountNamespace] {
		return invalid("linux.namespaces", "lacks %q, a root file system needs a mount namespace of its own", specs.MountNamespace)
	}
	if spec.Hostname != "" && !has[specs.UTSNamespace] {
		return invalid("hostname", "%q needs a uts namespace, add one to linux.namespaces", spec.Hostname)
	}
	if spec.Domainname != "" && !has[specs.UTSNamespace] {
		return invalid("domainname", "%q needs a uts namespace, add one to linux.namespaces", spec.Domainname)
	}
	if !has[specs.UserNamespace] && len(l.UIDMappings)+len(l.GIDMappings) > 0 {
		return invalid("linux.uidMappings", "needs a user namespace, add one to linux.namespaces")
	}
	if err := validateMappings("linux.uidMappings", l.UIDMappings); err != nil {
		return err
	}
	if err := validateMappings("linux.gidMappings", l.GIDMappings); err != nil {
		return err
	}
	for i, p := range l.MaskedPaths {
		if !filepath.IsAbs(p) || strings.IndexByte(p, 0) >= 0 {
			return invalid(fmt.Sprintf("linux.maskedPaths[%d]", i), "%q is not an absolute path", p)
		}
	}
	for i, p := range l.ReadonlyPaths {
		if !filepath.IsAbs(p) || strings.IndexByte(p, 0) >= 0 {
			return invalid(fmt.Sprintf("linux.readonlyPaths[%d]", i), "%q is not an absolute path", p)
		}
	}
	for i, d := range l.Devices {
		if !filepath.IsAbs(d.Path) || strings.IndexByte(d.Path, 0) >= 0 {
			return invalid(fmt.Sprintf("linux.devices[%d].path", i), "%q is not an absolute path", d.Path)
		}
	}
	for name := range l.Sysctl {
		if name == "" || strings.Contains(name, "..") || strings.IndexByte(name, 0) >= 0 {
			return invalid("linux.sysctl", "%q is no name of a kernel parameter, write it like net.ipv4.ip_forward", name)
		}
	}
	if p := l.CgroupsPath; slices.Contains(strings.Split(p, "/"), "..") {
		return invalid("linux.cgroupsPath", "%q must not contain ..", p)
	}
	if err := validateText("linux.cgroupsPath", l.CgroupsPath); err != nil {
		return err
	}
	return ValidateResources(l.Resources)
}

func validateMappings(field string, maps []specs.LinuxIDMapping) error {
	for i, m := range maps {
		f := fmt.Sprintf("%s[%d]", field, i)
		if m.Size == 0 {
			return invalid(f+".size", "is 0, give how many ids are mapped")
		}
		const last = math.MaxUint32 // no id, so ranges end before it
		if uint64(m.ContainerID)+uint64(m.Size) > last || uint64(m.HostID)+uint64(m.Size) > last {
			return invalid(f, "%d ids from %d and %d go past the highest id", m.Size, m.ContainerID, m.HostID)
		}
	}
	return nil
}

// ValidateResources checks resource limits of a spec or an update. nil is valid.
// Errors are ErrInvalidSpec.
func ValidateResources(r *specs.LinuxResources) error {
	if r == nil {
		return nil
	}
	for i, d := range r.Devices {
		field := fmt.Sprintf("linux.resources.devices[%d]", i)
		if d.Access == "" || strings.Trim(d.Access, "rwm") != "" {
			return invalid(field+".access", "%q is not made of the letters r, w and m", d.Access)
		}
		switch d.Type {
		case "", "a", "b", "c", "u", "p":
		default:
			return invalid(field+".type", "%q is no device type, use a, b or c", d.Type)
		}
	}
	if m := r.Memory; m != nil {
		for _, v := range []struct {
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
	}
	if c := r.CPU; c != nil {
		if c.Quota != nil && *c.Quota != -1 && *c.Quota < 0 {
			return invalid("linux.resources.cpu.quota", "%d is out of range, use microseconds or -1 for no limit", *c.Quota)
		}
		if c.Period != nil && *c.Period != 0 && (*c.Period < 1000 || *c.Period > 1_000_000) {
			return invalid("linux.resources.cpu.period", "%d is out of range, use 1000 to 1000000 microseconds", *c.Period)
		}
	}
	return nil
}

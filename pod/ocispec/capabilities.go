package ocispec

import (
	"fmt"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// Capabilities is what the caller wants changed of the default set. Names may be given
// with or without "CAP_" and in any case.
type Capabilities struct {
	Add, Drop, Ambient []string
	// Available are those that the daemon has to give; a privileged container
	// gets these, and "ALL" means these.
	Available []string
}

// DefaultCapabilities is the set that containers start from, the same as peers'.
func DefaultCapabilities() []string {
	return []string{
		"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FSETID", "CAP_FOWNER", "CAP_MKNOD", "CAP_NET_RAW",
		"CAP_SETGID", "CAP_SETUID", "CAP_SETFCAP", "CAP_SETPCAP", "CAP_NET_BIND_SERVICE",
		"CAP_SYS_CHROOT", "CAP_KILL", "CAP_AUDIT_WRITE",
	}
}

// known are the kernel's capabilities by number (linux/capability.h).
var known = []string{
	"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_DAC_READ_SEARCH", "CAP_FOWNER", "CAP_FSETID",
	"CAP_KILL", "CAP_SETGID", "CAP_SETUID", "CAP_SETPCAP", "CAP_LINUX_IMMUTABLE",
	"CAP_NET_BIND_SERVICE", "CAP_NET_BROADCAST", "CAP_NET_ADMIN", "CAP_NET_RAW", "CAP_IPC_LOCK",
	"CAP_IPC_OWNER", "CAP_SYS_MODULE", "CAP_SYS_RAWIO", "CAP_SYS_CHROOT", "CAP_SYS_PTRACE",
	"CAP_SYS_PACCT", "CAP_SYS_ADMIN", "CAP_SYS_BOOT", "CAP_SYS_NICE", "CAP_SYS_RESOURCE",
	"CAP_SYS_TIME", "CAP_SYS_TTY_CONFIG", "CAP_MKNOD", "CAP_LEASE", "CAP_AUDIT_WRITE",
	"CAP_AUDIT_CONTROL", "CAP_SETFCAP", "CAP_MAC_OVERRIDE", "CAP_MAC_ADMIN", "CAP_SYSLOG",
	"CAP_WAKE_ALARM", "CAP_BLOCK_SUSPEND", "CAP_AUDIT_READ", "CAP_PERFMON", "CAP_BPF",
	"CAP_CHECKPOINT_RESTORE",
}

// CapabilitiesOf names the capabilities in a kernel bit mask (the Cap lines of
// proc_pid_status(5)); bits that this program does not know are left out.
func CapabilitiesOf(mask uint64) []string {
	var names []string
	for i, name := range known {
		if mask&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return names
}

// all is the name that means every capability.
const all = "ALL"

// CapabilityName returns the kernel's name for s, or "ALL". An error says that there
// is no such capability.
func CapabilityName(s string) (string, error) {
	name := strings.ToUpper(s)
	if name == all || name == "CAP_ALL" {
		return all, nil
	}
	if !strings.HasPrefix(name, "CAP_") {
		name = "CAP_" + name
	}
	if !slices.Contains(known, name) {
		return "", fmt.Errorf("unknown capability %q", s)
	}
	return name, nil
}

// sets computes the process's capability sets. Drop wins over Add for single names;
// "ALL" on either side is taken first, as the CRI says.
func (c Capabilities) sets(privileged bool) (*specs.LinuxCapabilities, error) {
	add, addAll, err := names(c.Add)
	if err != nil {
		return nil, err
	}
	drop, dropAll, err := names(c.Drop)
	if err != nil {
		return nil, err
	}
	ambient, _, err := names(c.Ambient)
	if err != nil {
		return nil, err
	}
	set := DefaultCapabilities()
	switch {
	case privileged:
		set, add, drop = c.Available, nil, nil
	case addAll:
		set = c.Available
	case dropAll:
		set = nil
	}
	set = slices.Concat(set, add, ambient)
	slices.Sort(set)
	set = slices.Compact(set)
	set = slices.DeleteFunc(set, func(name string) bool {
		return slices.Contains(drop, name) || dropAll && addAll && !slices.Contains(add, name)
	})
	set = slices.DeleteFunc(set, func(name string) bool {
		// A default that the daemon does not have itself cannot be given; one
		// that was asked for by name is left in, so that the runtime refuses it.
		return c.Available != nil && !slices.Contains(c.Available, name) &&
			!slices.Contains(add, name) && !slices.Contains(ambient, name)
	})
	out := &specs.LinuxCapabilities{Bounding: set, Effective: set, Permitted: set}
	// The kernel has no ambient capability that is not permitted (capabilities(7)), so what is
	// dropped is dropped here, too.
	ambient = slices.DeleteFunc(ambient, func(name string) bool { return !slices.Contains(set, name) })
	if len(ambient) > 0 {
		out.Inheritable, out.Ambient = ambient, ambient
	}
	return out, nil
}

// names resolves a list of capability names, and says whether it has "ALL".
func names(list []string) (out []string, hasAll bool, err error) {
	for _, s := range list {
		name, err := CapabilityName(s)
		if err != nil {
			return nil, false, err
		}
		if name == all {
			hasAll = true
			continue
		}
		out = append(out, name)
	}
	return out, hasAll, nil
}

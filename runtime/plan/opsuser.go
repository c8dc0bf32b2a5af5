package plan

import (
	"fmt"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// User takes the program's user, groups and capabilities (capabilities(7)).
type User struct {
	UID    uint32   `json:"uid"`
	GID    uint32   `json:"gid"`
	Groups []uint32 `json:"groups,omitempty"`
	// NoGroups leaves the supplementary groups alone: this user namespace may not set them.
	NoGroups bool `json:"noGroups,omitempty"`
	Caps     Caps `json:"capabilities"`
	// KeepAdmin keeps CAP_SYS_ADMIN beyond Caps, for a filter to be loaded.
	KeepAdmin bool `json:"keepAdmin,omitempty"`
}

// SetCaps sets the effective, permitted and inheritable capabilities.
type SetCaps struct {
	Caps Caps `json:"capabilities"`
}

func (o SetCaps) String() string {
	return fmt.Sprintf("keep %d capabilities", len(o.Caps.Permitted.Names()))
}

func (o SetCaps) lower(a *asm) { a.setCaps(o.Caps, 0) }

// setCaps sets the sets, and some capabilities beyond.
func (a *asm) setCaps(c Caps, beyond CapSet) {
	e, p, i := c.Effective|beyond, c.Permitted|beyond, c.Inheritable
	a.call(unix.SYS_CAPSET, a.u32s(unix.LINUX_CAPABILITY_VERSION_3, 0),
		a.u32s(uint32(e), uint32(p), uint32(i), uint32(e>>32), uint32(p>>32), uint32(i>>32)))
}

// Caps are a process's sets of capabilities.
type Caps struct {
	Bounding    CapSet `json:"bounding"`
	Effective   CapSet `json:"effective"`
	Permitted   CapSet `json:"permitted"`
	Inheritable CapSet `json:"inheritable"`
	Ambient     CapSet `json:"ambient"`
}

func (o User) String() string {
	return fmt.Sprintf("become user %d, group %d, with %d capabilities", o.UID, o.GID, len(o.Caps.Effective.Names()))
}

func (o User) lower(a *asm) {
	for c := range capNames {
		if !o.Caps.Bounding.has(c) {
			a.call(unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, c, 0, 0, 0).forgiving(nil, unix.EINVAL) // one that this kernel lacks
		}
	}
	a.call(unix.SYS_PRCTL, unix.PR_SET_KEEPCAPS, 1, 0, 0, 0)
	if !o.NoGroups {
		a.call(unix.SYS_SETGROUPS, len(o.Groups), a.u32s(o.Groups...))
	}
	a.call(unix.SYS_SETRESGID, o.GID, o.GID, o.GID)
	a.call(unix.SYS_SETRESUID, o.UID, o.UID, o.UID)
	a.call(unix.SYS_PRCTL, unix.PR_SET_KEEPCAPS, 0, 0, 0, 0)
	var beyond CapSet
	if o.KeepAdmin {
		beyond = 1 << unix.CAP_SYS_ADMIN
	}
	a.setCaps(o.Caps, beyond)
	a.call(unix.SYS_PRCTL, unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0).forgiving(nil, unix.EINVAL)
	for c := range capNames {
		if o.Caps.Ambient.has(c) {
			a.call(unix.SYS_PRCTL, unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE, c, 0, 0)
		}
	}
}

// CapSet is a set of capabilities: bit n is number n.
type CapSet uint64

func (s CapSet) has(c int) bool { return s>>uint(c)&1 != 0 }

// Names lists the set.
func (s CapSet) Names() []string {
	var out []string
	for c, name := range capNames {
		if s.has(c) {
			out = append(out, name)
		}
	}
	return out
}

// MarshalText writes the names.
func (s CapSet) MarshalText() ([]byte, error) { return []byte(strings.Join(s.Names(), ",")), nil }

// capNames are the capabilities by number, linux/capability.h.
var capNames = []string{
	"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_DAC_READ_SEARCH", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_SETGID", "CAP_SETUID",
	"CAP_SETPCAP", "CAP_LINUX_IMMUTABLE", "CAP_NET_BIND_SERVICE", "CAP_NET_BROADCAST", "CAP_NET_ADMIN", "CAP_NET_RAW",
	"CAP_IPC_LOCK", "CAP_IPC_OWNER", "CAP_SYS_MODULE", "CAP_SYS_RAWIO", "CAP_SYS_CHROOT", "CAP_SYS_PTRACE", "CAP_SYS_PACCT",
	"CAP_SYS_ADMIN", "CAP_SYS_BOOT", "CAP_SYS_NICE", "CAP_SYS_RESOURCE", "CAP_SYS_TIME", "CAP_SYS_TTY_CONFIG", "CAP_MKNOD",
	"CAP_LEASE", "CAP_AUDIT_WRITE", "CAP_AUDIT_CONTROL", "CAP_SETFCAP", "CAP_MAC_OVERRIDE", "CAP_MAC_ADMIN", "CAP_SYSLOG",
	"CAP_WAKE_ALARM", "CAP_BLOCK_SUSPEND", "CAP_AUDIT_READ", "CAP_PERFMON", "CAP_BPF", "CAP_CHECKPOINT_RESTORE",
}

// capSet is the set of these names. Unknown ones are left out, as config.md#linux-process wants
// it; see UnknownCapabilities.
func capSet(names []string) CapSet {
	var s CapSet
	for _, n := range names {
		if c := slices.Index(capNames, n); c >= 0 {
			s |= 1 << uint(c)
		}
	}
	return s
}

// NotAmbient are the ambient capabilities of a process that the kernel does not take, because they
// are not permitted and inheritable, too (capabilities(7)). The runtime warns of them.
func NotAmbient(c *specs.LinuxCapabilities) []string {
	if c == nil {
		return nil
	}
	return (capSet(c.Ambient) &^ (capSet(c.Permitted) & capSet(c.Inheritable))).Names()
}

// UnknownCapabilities are names in a process's sets that no kernel has: the runtime has to
// warn of them.
func UnknownCapabilities(c *specs.LinuxCapabilities) []string {
	if c == nil {
		return nil
	}
	var out []string
	for _, list := range [][]string{c.Bounding, c.Effective, c.Permitted, c.Inheritable, c.Ambient} {
		for _, n := range list {
			if !slices.Contains(capNames, n) && !slices.Contains(out, n) {
				out = append(out, n)
			}
		}
	}
	return out
}

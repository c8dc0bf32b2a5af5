package ocispec

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/moby/profiles/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// profiles keeps the default profile for the last few sets of capabilities: nearly
// all containers of a node have the same one or two. The values are shared and must
// not be changed.
var profiles struct {
	mu     sync.Mutex
	byCaps map[string]*specs.LinuxSeccomp
}

// maxProfiles bounds the cache (about 60 KB each).
const maxProfiles = 4

func defaultProfile(s *specs.Spec) (*specs.LinuxSeccomp, error) {
	key := strings.Join(s.Process.Capabilities.Bounding, ",")
	profiles.mu.Lock()
	defer profiles.mu.Unlock()
	if p, ok := profiles.byCaps[key]; ok {
		return p, nil
	}
	p, err := seccomp.GetDefaultProfile(s)
	if err != nil {
		return nil, fmt.Errorf("default seccomp profile: %w", err)
	}
	tighten(p)
	if profiles.byCaps == nil || len(profiles.byCaps) >= maxProfiles {
		profiles.byCaps = map[string]*specs.LinuxSeccomp{}
	}
	profiles.byCaps[key] = p
	return p, nil
}

// looser are system calls that moby's profile allows and containerd's does not: those of
// security modules for CAP_SYS_ADMIN, and one that only riscv64 has.
var looser = []string{"lsm_get_self_attr", "lsm_list_modules", "lsm_set_self_attr", "riscv_hwprobe"}

// socketFamilies are those above AF_ALG that containers may have sockets of. AF_VSOCK is not among
// them: it leads to the host, whatever the network namespace.
var socketFamilies = []uint64{unix.AF_NFC, unix.AF_KCM, unix.AF_QIPCRTR, unix.AF_SMC, unix.AF_XDP, unix.AF_MCTP}

// tighten makes moby's profile allow nothing that containerd's does not. moby allows sockets of any
// family above AF_VSOCK; a filter compares 64 bits, of which the kernel takes the lower 32 as the
// family, so AF_VSOCK and AF_ALG could be opened with any of the upper ones set.
func tighten(p *specs.LinuxSeccomp) {
	rules := p.Syscalls[:0]
	for _, r := range p.Syscalls {
		r.Names = slices.DeleteFunc(r.Names, func(name string) bool {
			return name == "socket" || name == "socketcall" || slices.Contains(looser, name)
		})
		if len(r.Names) > 0 {
			rules = append(rules, r)
		}
	}
	// The rules for socket also apply to a call within i386's socketcall(2), there for any family. A
	// rule for the whole call comes before them, or it contradicts them; its
	// error is not the default one, or it is no rule to libseccomp's callers. Programs that know
	// socket(2) try that next.
	p.Syscalls = append([]specs.LinuxSyscall{{
		Names: []string{"socketcall"}, Action: specs.ActErrno, ErrnoRet: new(uint(unix.ENOSYS)),
	}}, rules...)
	p.Syscalls = append(p.Syscalls, socketsOf(unix.AF_ALG, specs.OpLessThan))
	for _, family := range socketFamilies {
		p.Syscalls = append(p.Syscalls, socketsOf(family, specs.OpEqualTo))
	}
}

// socketsOf allows socket(2) for some families. One condition each: libseccomp's callers take
// several on one argument as alternatives.
func socketsOf(family uint64, op specs.LinuxSeccompOperator) specs.LinuxSyscall {
	return specs.LinuxSyscall{
		Names: []string{"socket"}, Action: specs.ActAllow,
		Args: []specs.LinuxSeccompArg{{Index: 0, Value: family, Op: op}},
	}
}

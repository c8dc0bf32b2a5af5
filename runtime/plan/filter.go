package plan

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// Filter is a seccomp filter.
type Filter struct {
	Program []unix.SockFilter
	Flags   uint // of seccomp(2)
	// Notify says that loading gives a descriptor, which the maker hands to an agent.
	Notify bool
}

var auditArch = map[string]uint32{"amd64": unix.AUDIT_ARCH_X86_64, "arm64": unix.AUDIT_ARCH_AARCH64}

// call is a system call of this machine, with those of its arguments that are known.
type call struct {
	nr   int
	args []uint64
}

// allows says whether the filter lets a system call pass. One that looks at an argument which
// is not known is taken to refuse it.
func (f *Filter) allows(c call) bool {
	const offNr, offArch, offArgs = 0, 4, 16 // in struct seccomp_data
	var acc uint32
	for pc := 0; pc < len(f.Program); pc++ {
		in := f.Program[pc]
		var jump bool
		switch in.Code {
		case unix.BPF_RET | unix.BPF_K:
			action := in.K & unix.SECCOMP_RET_ACTION_FULL
			return action == unix.SECCOMP_RET_ALLOW || action == unix.SECCOMP_RET_LOG
		case unix.BPF_LD | unix.BPF_W | unix.BPF_ABS:
			switch arg := (int(in.K) - offArgs) / 8; {
			case in.K == offNr:
				acc = uint32(c.nr)
			case in.K == offArch:
				acc = auditArch[runtime.GOARCH]
			case in.K >= offArgs && arg < len(c.args):
				acc = uint32(c.args[arg] >> (in.K % 8 * 8))
			default:
				return false
			}
			continue
		case unix.BPF_ALU | unix.BPF_AND | unix.BPF_K:
			acc &= in.K
			continue
		case unix.BPF_JMP | unix.BPF_JA:
			pc += int(in.K)
			continue
		case unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K:
			jump = acc == in.K
		case unix.BPF_JMP | unix.BPF_JGT | unix.BPF_K:
			jump = acc > in.K
		case unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K:
			jump = acc >= in.K
		case unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K:
			jump = acc&in.K != 0
		default:
			return false
		}
		if jump {
			pc += int(in.Jt)
		} else {
			pc += int(in.Jf)
		}
	}
	return false
}

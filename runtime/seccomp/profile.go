package seccomp

import (
	"errors"
	"fmt"
	"math"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// profile is a checked specs.LinuxSeccomp: one call a rule, actions as the kernel has them.
type profile struct {
	archs []*arch // the machine's own first
	other uint32  // the default action
	flags uint32
	// notify: some rule hands calls to an agent.
	notify bool
	rules  []namedRule
	// conditions is how many rules with comparisons there are, alternatives counted.
	conditions int
}

// maxConditions bounds the work: usual profiles have less than a hundred.
const maxConditions = 16 << 10

type namedRule struct {
	call   *call
	action uint32
	// any of these must hold, each of which is comparisons that all must hold.
	any [][]comparison
}

func parse(in *specs.LinuxSeccomp, on host) (*profile, error) {
	p := &profile{}
	var err error
	if p.archs, err = archs(in.Architectures, on); err != nil {
		return nil, err
	}
	if p.other, err = action(in.DefaultAction, in.DefaultErrnoRet); err != nil {
		return nil, fmt.Errorf("default action: %w", err)
	}
	if p.other == unix.SECCOMP_RET_USER_NOTIF {
		return nil, errors.New("default action: SCMP_ACT_NOTIFY is for single system calls only: give it to a rule")
	}
	for i := range in.Syscalls {
		if err := p.addRules(&in.Syscalls[i]); err != nil {
			return nil, fmt.Errorf("syscalls[%d]: %w", i, err)
		}
	}
	if p.notify && in.ListenerPath == "" {
		return nil, errors.New("SCMP_ACT_NOTIFY needs an agent to notify: set listenerPath to its socket")
	}
	p.flags, err = flags(in.Flags, p.notify)
	return p, err
}

func (p *profile) addRules(in *specs.LinuxSyscall) error {
	act, err := action(in.Action, in.ErrnoRet)
	if err != nil {
		return err
	}
	any, err := comparisons(in.Args)
	if err != nil {
		return err
	}
	for i, name := range in.Names {
		if name == "" {
			return fmt.Errorf("names[%d] is empty", i)
		}
		if act == unix.SECCOMP_RET_USER_NOTIF {
			// A descriptor of the listener is handed over with write while the filter
			// is already in force (runc refuses this, too).
			if name == "write" {
				return errors.New("SCMP_ACT_NOTIFY for write would stop the container before its agent knows of it: remove it")
			}
			p.notify = true
		}
		if len(any) > 1 || len(any[0]) > 0 {
			if p.conditions += len(any); p.conditions > maxConditions {
				return fmt.Errorf("the profile has more than %d rules with args, one name counted as one rule", maxConditions)
			}
		}
		// A name that we do not know is one of another kernel or machine.
		if c, ok := lookup(name); ok {
			p.rules = append(p.rules, namedRule{call: c, action: act, any: any})
		}
	}
	return nil
}

const maxErrno = 4095

// action is what a program returns for the action. An errno for an action that has none is
// ignored, as in runc.
func action(a specs.LinuxSeccompAction, errno *uint) (uint32, error) {
	data := uint32(unix.EPERM)
	if errno != nil {
		// libseccomp's bounds. The kernel has 16 bits, and takes 4095 for any greater errno.
		if a == specs.ActErrno && *errno >= maxErrno {
			return 0, fmt.Errorf("errnoRet %d is no errno: they are less than %d", *errno, maxErrno)
		}
		if a == specs.ActTrace && *errno > math.MaxUint16 {
			return 0, fmt.Errorf("errnoRet %d for a tracer has more than 16 bits", *errno)
		}
		data = uint32(*errno & math.MaxUint16)
	}
	switch a {
	case specs.ActKill, specs.ActKillThread:
		return unix.SECCOMP_RET_KILL_THREAD, nil
	case specs.ActKillProcess:
		return unix.SECCOMP_RET_KILL_PROCESS, nil
	case specs.ActTrap:
		return unix.SECCOMP_RET_TRAP, nil
	case specs.ActErrno:
		return unix.SECCOMP_RET_ERRNO | data, nil
	case specs.ActTrace:
		return unix.SECCOMP_RET_TRACE | data, nil
	case specs.ActAllow:
		return unix.SECCOMP_RET_ALLOW, nil
	case specs.ActLog:
		return unix.SECCOMP_RET_LOG, nil
	case specs.ActNotify:
		return unix.SECCOMP_RET_USER_NOTIF, nil
	}
	return 0, fmt.Errorf("%q is not an action, expected one like SCMP_ACT_ERRNO", a)
}

// flagTSYNC has no constant in the runtime spec's Go package, but is in its text.
const flagTSYNC specs.LinuxSeccompFlag = "SECCOMP_FILTER_FLAG_TSYNC"

// flags are those to load with. No list is not the same as an empty one: containers run
// without the mitigation of Speculative Store Bypass unless they ask for it, as in runc.
func flags(names []specs.LinuxSeccompFlag, notify bool) (uint32, error) {
	var f uint32
	if names == nil {
		f = unix.SECCOMP_FILTER_FLAG_SPEC_ALLOW
	}
	for i, name := range names {
		switch name {
		case flagTSYNC:
			f |= unix.SECCOMP_FILTER_FLAG_TSYNC
		case specs.LinuxSeccompFlagLog:
			f |= unix.SECCOMP_FILTER_FLAG_LOG
		case specs.LinuxSeccompFlagSpecAllow:
			f |= unix.SECCOMP_FILTER_FLAG_SPEC_ALLOW
		case specs.LinuxSeccompFlagWaitKillableRecv:
			if !notify {
				return 0, fmt.Errorf("flags[%d]: %s needs a rule with SCMP_ACT_NOTIFY: remove it", i, name)
			}
			f |= unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV
		default:
			return 0, fmt.Errorf("flags[%d]: %q is not a flag, expected one like SECCOMP_FILTER_FLAG_LOG", i, name)
		}
	}
	if notify {
		f |= unix.SECCOMP_FILTER_FLAG_NEW_LISTENER
		if f&unix.SECCOMP_FILTER_FLAG_TSYNC != 0 {
			// Both return a number: without this one the kernel refuses the pair (Linux 5.7).
			f |= unix.SECCOMP_FILTER_FLAG_TSYNC_ESRCH
		}
	}
	return f, nil
}

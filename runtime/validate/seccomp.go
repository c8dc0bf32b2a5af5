package validate

import (
	"fmt"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"
)

var (
	seccompActions = []specs.LinuxSeccompAction{
		specs.ActAllow, specs.ActErrno, specs.ActKill, specs.ActKillProcess, specs.ActKillThread, specs.ActTrap, specs.ActTrace,
		specs.ActLog, specs.ActNotify,
	}
	seccompOperators = []specs.LinuxSeccompOperator{
		specs.OpEqualTo, specs.OpNotEqual, specs.OpMaskedEqual, specs.OpLessThan, specs.OpLessEqual, specs.OpGreaterEqual,
		specs.OpGreaterThan,
	}
	seccompFlags = []specs.LinuxSeccompFlag{
		"SECCOMP_FILTER_FLAG_TSYNC", specs.LinuxSeccompFlagLog, specs.LinuxSeccompFlagSpecAllow, specs.LinuxSeccompFlagWaitKillableRecv,
	}
	seccompArchs = []specs.Arch{
		specs.ArchX86_64, specs.ArchX86, specs.ArchX32, specs.ArchAARCH64, specs.ArchARM, specs.ArchMIPS, specs.ArchMIPS64,
		specs.ArchMIPS64N32, specs.ArchMIPSEL, specs.ArchMIPSEL64, specs.ArchMIPSEL64N32, specs.ArchPPC, specs.ArchPPC64,
		specs.ArchPPC64LE, specs.ArchS390, specs.ArchS390X, specs.ArchPARISC, specs.ArchPARISC64, specs.ArchRISCV64,
		specs.ArchLOONGARCH64, specs.ArchM68K, specs.ArchSH, specs.ArchSHEB,
	}
)

// checkSeccomp checks the words of a profile. What they mean together is judged when it is
// compiled.
func checkSeccomp(s *specs.LinuxSeccomp) error {
	if s == nil || s.DefaultAction == "" && len(s.Syscalls) == 0 {
		return nil
	}
	if !slices.Contains(seccompActions, s.DefaultAction) {
		return invalid("linux.seccomp.defaultAction", "%q is no action, use one such as SCMP_ACT_ERRNO", s.DefaultAction)
	}
	if s.DefaultAction == specs.ActNotify {
		return invalid("linux.seccomp.defaultAction", "is SCMP_ACT_NOTIFY, which is for single system calls only; give it to a rule")
	}
	for i, f := range s.Flags {
		if !slices.Contains(seccompFlags, f) {
			return invalid(fmt.Sprintf("linux.seccomp.flags[%d]", i), "%q is no flag, use one of %v", f, seccompFlags)
		}
	}
	for i, a := range s.Architectures {
		if !slices.Contains(seccompArchs, a) {
			return invalid(fmt.Sprintf("linux.seccomp.architectures[%d]", i), "%q is no architecture, use one such as SCMP_ARCH_X86_64", a)
		}
	}
	for i := range s.Syscalls {
		if err := checkSeccompRule(i, &s.Syscalls[i]); err != nil {
			return err
		}
		if s.Syscalls[i].Action == specs.ActNotify && s.ListenerPath == "" {
			return invalid(fmt.Sprintf("linux.seccomp.syscalls[%d].action", i),
				"is SCMP_ACT_NOTIFY, which needs an agent; set linux.seccomp.listenerPath to its socket")
		}
	}
	return texts{{"linux.seccomp.listenerPath", s.ListenerPath}}.check()
}

func checkSeccompRule(i int, r *specs.LinuxSyscall) error {
	bad := func(field, format string, args ...any) error {
		return invalid(fmt.Sprintf("linux.seccomp.syscalls[%d].%s", i, field), format, args...)
	}
	if len(r.Names) == 0 {
		return bad("names", "is empty, list the system calls of the rule or remove it")
	}
	if !slices.Contains(seccompActions, r.Action) {
		return bad("action", "%q is no action, use one such as SCMP_ACT_ALLOW", r.Action)
	}
	for k, a := range r.Args {
		if !slices.Contains(seccompOperators, a.Op) {
			return bad(fmt.Sprintf("args[%d].op", k), "%q is no operator, use one such as SCMP_CMP_EQ", a.Op)
		}
		if a.Index > 5 {
			return bad(fmt.Sprintf("args[%d].index", k), "%d is out of range, system calls have arguments 0 to 5", a.Index)
		}
	}
	return nil
}

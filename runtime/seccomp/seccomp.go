// Package seccomp compiles the seccomp profile of an OCI bundle into the classic BPF
// program that the kernel runs at each system call of a container. It is pure Go: no
// libseccomp, no cgo. What a program decides is what runc 1.5 makes of the same
// profile with libseccomp; how it gets there is our own.
//
// # Words
//
//	profile     linux.seccomp of config.json: rules, and an action for all other calls
//	action      what the kernel does with a call: allow it, fail it with an errno, kill, ...
//	rule        a call's name, comparisons of its arguments (all must hold), an action
//	audit arch  how the kernel tells a program whose calling convention was used
//
// # How a profile becomes a program
//
//	specs.LinuxSeccomp ─parse─► rules by name ─resolve─► rules by number, per architecture
//	   ─► ranges of numbers with one decision each ─► a graph of tests ─► instructions
//
// The architecture is looked at first, then the call's number by binary search over
// ranges, then arguments, word by word: BPF has 32 bits and arguments have 64. Equal
// parts of the graph are one part, so all calls that are allowed share one instruction.
//
// # What a program decides
//
//   - The first rule without comparisons wins over all other rules of its call. Else the
//     first rule whose comparisons all hold wins, in the order that libseccomp gives them
//     (comparison.before). Else it is the profile's default action.
//   - Rules with the same comparisons and different actions are refused, and so is a rule
//     with fewer comparisons after one that has them and more.
//   - If a rule has several comparisons of one argument, all its comparisons are
//     alternatives, as in runc. Else all must hold.
//   - Rules with the default action, and names that no kernel has, do nothing.
//   - 32-bit architectures, x32 among them, see the low halves of arguments and values.
//   - On i386 a rule for a socket or System V IPC call holds for the direct call and for
//     its number in socketcall(2) or ipc(2), where argument 0 is that number.
//   - An architecture that the profile does not name, x32 included, is killed. Those that
//     this machine cannot execute make no code. Its own is always included.
//   - If the default action denies, calls numbered above the highest that the profile names
//     get ENOSYS, so that programs fall back as they do on an old kernel: a profile cannot
//     have meant to deny what was not there when it was written.
//
// # Where libseccomp differs
//
// Tests run programs of the default profile and of random ones next to those that runc's own
// functions make with the installed libseccomp. Version 2.5.4 departs from what its rules
// say in these cases, where we do not follow it and the tests go by the profile instead:
//
//   - A call has several rules with ordering or inequality comparisons, of a 64-bit argument
//     or of several arguments: after one rule has failed at one word, the next may be
//     tested with that word instead of its own.
//   - A profile has at most 32 calls, some of which an architecture has not, and none that
//     it has is without comparisons: there the number is never looked at. x86-64 is spared
//     unless x32 goes with it.
//   - Rules with different actions whose comparisons share an upper half may be refused
//     although they are different, or never come to an end.
//
// Our table knows calls that are newer than that libseccomp; runc skips them as unknown.
//
// # References
//
// Runtime spec 1.3, config-linux.md, "Seccomp"; Linux, Documentation/userspace-api/
// seccomp_filter.rst and seccomp(2); runc 1.5 libcontainer/seccomp and its patchbpf.
package seccomp

import (
	"errors"
	"fmt"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// ErrInvalid is the kind of every error of a profile that cannot be compiled.
var ErrInvalid = errors.New("invalid seccomp profile")

// Filter is a program and how to load it with seccomp(SECCOMP_SET_MODE_FILTER). It may be
// shared by many containers, so it must not be changed.
type Filter struct {
	// Insns is the program, at most 4096 instructions. It is empty if the profile is: then
	// there is nothing to load.
	Insns []unix.SockFilter
	// Flags are SECCOMP_FILTER_FLAG_*.
	Flags uint32
	// Notify says that loading returns a descriptor (SECCOMP_FILTER_FLAG_NEW_LISTENER),
	// which belongs to the agent at ListenerPath.
	Notify bool
	// ListenerPath and ListenerMetadata are the profile's.
	ListenerPath, ListenerMetadata string
}

// Compile makes the program for this machine. A nil profile, and one with neither a default
// action nor rules, is one that does nothing, as in runc. Every error is ErrInvalid and says
// which part of the profile is wrong.
func Compile(profile *specs.LinuxSeccomp) (*Filter, error) {
	f, err := compile(profile, thisHost)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return f, nil
}

func compile(in *specs.LinuxSeccomp, on host) (*Filter, error) {
	if in == nil || in.DefaultAction == "" && len(in.Syscalls) == 0 {
		return &Filter{}, nil
	}
	p, err := parse(in, on)
	if err != nil {
		return nil, err
	}
	g := newGraph()
	root, err := decide(g, p, on)
	if err != nil {
		return nil, err
	}
	insns, err := assemble(root)
	if err != nil {
		return nil, err
	}
	return &Filter{
		Insns: insns, Flags: p.flags, Notify: p.notify,
		ListenerPath: in.ListenerPath, ListenerMetadata: in.ListenerMetadata,
	}, nil
}

// Package plan turns an OCI configuration into a plan: a list of typed operations that make
// a container, in order. A plan is data. Making one touches nothing, so that plans can be
// printed, compared and tested; package engine opens the descriptors that a plan asks for
// and has the zygote carry it out.
//
// # How a container comes to be
//
// The zygote (package zygote) lives in a mount namespace of its own, which holds nothing but
// an empty directory, proc, sysfs, /dev/null and an empty read-only directory for masks. Its
// children inherit that and never see a path of the host: what comes from the host (root file
// system, volumes, namespaces, cgroups) comes as a descriptor (see Open). So a plan enters the
// container's root first and mounts everything else from within, where a symbolic link can
// lead nowhere but into the container; magic links are refused, and no mount goes into proc
// but where config-linux.md allows it.
//
// Who is not root of the host may not make copies of mounts. There the process that is cloned
// does it, while it still sees the host's mounts in a namespace of its own, and then makes the
// zygote's surroundings itself (see Take and Settle); from there on the plan is the same.
//
// Operations are carried out by system calls alone. Each names what it does for people
// (String), and lowers itself to instructions of the zygote.
package plan

import (
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
)

// ErrUnsupported says that a configuration asks for something plans cannot express; another
// engine may.
var ErrUnsupported = errors.New("not supported by the plan engine")

func unsupported(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrUnsupported, fmt.Sprintf(format, args...))
}

// Plan is how to make a container, or a process in one.
type Plan struct {
	// Opens are the descriptors that the child is given, in order.
	Opens []Open `json:"opens"`
	// Namespaces are the new ones, as flags of clone3(2).
	Namespaces Namespaces `json:"namespaces"`
	// Mappings are the ids of a new user namespace, nil if there is none.
	Mappings *Mappings `json:"mappings,omitempty"`
	// Ops are what the child does.
	Ops []Op `json:"ops"`
}

// Op is one operation of a plan.
type Op interface {
	fmt.Stringer
	lower(a *asm)
}

// Points at which a child waits for its maker, and what it reports.
const (
	ReportError   = 1 // see zygote.h
	ReportPoint   = 2 // a: which Point; the maker answers with one byte
	ReportProcess = 3 // comes from the process that goes on in the place of the one that began
	ReportCreated = 4 // all is done but to execute the program
	// ReportListener has in a the descriptor that the seccomp filter gave the process that
	// reports, which waits for one byte, as at a Point.
	ReportListener = 6
	// ReportCopyUp has in a and b descriptors of the process that reports, directories: the maker
	// copies what the first holds into the second, which is empty.
	ReportCopyUp = 7
	// ReportTarget has in a which of Code.Targets the maker is to make, below the root directory
	// that b is a descriptor of.
	ReportTarget = 8
)

// Point is a place in a plan where the child waits until its maker has done something.
type Point uint32

// The points.
const (
	PointMappings  Point = iota + 1 // write its uid_map and gid_map
	PointHooks                      // run the hooks prestart, createRuntime and createContainer
	PointTime                       // write its timens_offsets
	PointCgroup                     // move it into its cgroup
	PointNetwork                    // move linux.netDevices into its network namespace
	PointScheduler                  // set process.scheduler, which a fork would have undone
)

// Namespaces is a set of CLONE_NEW flags.
type Namespaces uint64

var namespaceNames = []struct {
	flag Namespaces
	name string
}{
	{unix.CLONE_NEWUSER, "user"},
	{unix.CLONE_NEWNS, "mount"},
	{unix.CLONE_NEWPID, "pid"},
	{unix.CLONE_NEWNET, "network"},
	{unix.CLONE_NEWIPC, "ipc"},
	{unix.CLONE_NEWUTS, "uts"},
	{unix.CLONE_NEWCGROUP, "cgroup"},
	{unix.CLONE_NEWTIME, "time"},
}

// Names are the namespaces of the set.
func (n Namespaces) Names() []string {
	var out []string
	for _, ns := range namespaceNames {
		if n&ns.flag != 0 {
			out = append(out, ns.name)
		}
	}
	return out
}

// Features are what the kernel can do beyond Linux 5.10. A plan for a kernel that lacks one
// does the same in another way.
type Features struct {
	// MountSetattr: mount_setattr(2), Linux 5.12.
	MountSetattr bool `json:"mountSetattr"`
}

// Encode turns the plan into what the zygote runs.
func (p *Plan) Encode(f Features) (*Code, error) { return p.encode(f, false) }

func (p *Plan) encode(f Features, traced bool) (*Code, error) {
	if len(p.Opens) > MaxFds {
		return nil, fmt.Errorf("the container needs %d descriptors, the most is %d; give it fewer mounts or files", len(p.Opens), MaxFds)
	}
	a := newAsm(f, len(p.Opens))
	a.traced = traced
	a.hasGate = slices.ContainsFunc(p.Ops, func(op Op) bool { _, is := op.(Gate); return is })
	for i, op := range p.Ops {
		a.begin(i)
		a.tick()
		op.lower(a)
	}
	return a.code()
}

// Fail explains an error that a child reported: where it happened and in which system call.
func (p *Plan) Fail(code *Code, insn int, errno unix.Errno) error {
	if insn < 0 || insn >= len(code.ops) || int(code.ops[insn]) >= len(p.Ops) {
		return fmt.Errorf("operation %d: %w", insn, errno)
	}
	op := p.Ops[code.ops[insn]]
	if e, ok := op.(interface{ explain(unix.Errno) error }); ok {
		if err := e.explain(errno); err != nil {
			return err
		}
	}
	if name := callName(code.nrs[insn]); name != "" {
		return fmt.Errorf("%s: %s: %w", op, name, errno)
	}
	return fmt.Errorf("%s: %w", op, errno)
}

// Joinable are the namespaces that a further process of the container has to join.
func (p *Plan) Joinable() Namespaces {
	n := p.Namespaces
	for _, op := range p.Ops {
		switch op := op.(type) {
		case Setns:
			n |= op.Types
		case Unshare:
			n |= op.Types
		}
	}
	return n
}

// Forks says whether another process goes on in the place of the one that began. Its first report
// is ReportProcess.
func (p *Plan) Forks() bool {
	return slices.ContainsFunc(p.Ops, func(op Op) bool { _, is := op.(Fork); return is })
}

// Asks says whether the plan has a step at which the child sends such a report, and waits for an
// answer: a child that another process has taken over can send any.
func (p *Plan) Asks(kind, arg uint32) bool {
	return slices.ContainsFunc(p.Ops, func(op Op) bool {
		switch op := op.(type) {
		case Wait:
			return kind == ReportPoint && arg == uint32(op.For)
		case Seccomp:
			return kind == ReportListener && op.Notify
		case Mount:
			return kind == ReportCopyUp && op.CopyUp
		}
		return false
	}) || kind == ReportTarget // of which the maker has a list, Code.Targets
}

// Filter is the seccomp filter that the plan loads, nil if there is none.
func (p *Plan) Filter() *Filter {
	for _, op := range p.Ops {
		if s, ok := op.(Seccomp); ok {
			return &Filter{s.Filter, s.Flags, s.Notify}
		}
	}
	return nil
}

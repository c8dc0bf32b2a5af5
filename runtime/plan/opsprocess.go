package plan

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// Setns joins a namespace, setns(2).
type Setns struct {
	Fd    Fd         `json:"fd"`
	Types Namespaces `json:"types"`
	Path  string     `json:"path,omitempty"` // for people
}

func (o Setns) String() string {
	return strings.TrimSpace(fmt.Sprintf("join %s namespace %s", strings.Join(o.Types.Names(), "+"), o.Path))
}

func (o Setns) lower(a *asm) { a.call(unix.SYS_SETNS, slot(o.Fd), uint64(o.Types)) }

// Unshare makes new namespaces, unshare(2).
type Unshare struct {
	Types Namespaces `json:"types"`
}

func (o Unshare) String() string { return "make namespaces " + strings.Join(o.Types.Names(), ", ") }

func (o Unshare) lower(a *asm) {
	a.call(unix.SYS_UNSHARE, uint64(o.Types))
	if o.Types&unix.CLONE_NEWNS != 0 {
		a.old = 0 // it is a mount of the namespace that was left
	}
}

// Wait lets the maker of the container do something at this point.
type Wait struct {
	For Point `json:"for"`
}

func (o Wait) String() string {
	return map[Point]string{
		PointMappings: "wait for the user namespace's mappings", PointHooks: "run hooks prestart, createRuntime and createContainer",
		PointTime: "wait for the time namespace's offsets", PointCgroup: "wait to be put into the cgroup",
		PointNetwork: "wait for the network devices", PointScheduler: "wait for the scheduling policy",
	}[o.For]
}

func (o Wait) lower(a *asm) {
	a.report(ReportPoint, uint32(o.For))
	a.await(a.sync)
}

// report sends a struct report of zygote.h.
func (a *asm) report(kind, value uint32) {
	// write(2) rather than send(2): a seccomp filter is more likely to allow it.
	a.call(unix.SYS_WRITE, a.sync, a.u32s(kind, value, 0, 0), 16)
}

// await reads one byte. An end of file means that the sender is gone.
func (a *asm) await(from slot) {
	n, good := a.newSlot(), &label{}
	a.call(unix.SYS_READ, from, a.bytes(make([]byte, 8), 8), 1).to(n)
	a.call(opIfEq, n, 1).then(good)
	a.call(opFail, int(unix.EPIPE))
	a.bind(good)
}

// JoinCgroups moves the process into cgroups of version 1. Writing 0 to tasks moves the
// calling thread alone, which spares the kernel a lock that costs milliseconds
// (cgroup_threadgroup_rwsem); this process has no other.
type JoinCgroups struct {
	Tasks []Fd `json:"tasks"`
}

func (o JoinCgroups) String() string { return "join the cgroup" }

func (o JoinCgroups) lower(a *asm) {
	zero := a.str("0")
	for _, fd := range o.Tasks {
		a.call(unix.SYS_WRITE, slot(fd), zero, 1)
	}
}

// Fork goes on in a new process that is a child of the same parent; this one ends. The new one
// reports first of all, so that it is known even if this one is killed at any moment. Both are a
// process group of their own, so that their parent can reap the new one if it is killed before it
// reports, as by the end of a PID namespace that it is in.
// Namespaces of kinds that only children get (pid, time) take effect thereby.
type Fork struct{}

func (Fork) String() string { return "go on in the new namespace" }

func (Fork) lower(a *asm) {
	if !a.hasGate {
		a.sendTrace()
	}
	a.call(unix.SYS_SETPGID, 0, 0).forgiving(nil, unix.EPERM, unix.EACCES) // of a session's leader, and of SELinux
	pid, child := a.newSlot(), &label{}
	a.call(unix.SYS_CLONE, unix.CLONE_PARENT, 0, 0, 0, 0).to(pid)
	a.call(opIfEq, pid, 0).then(child)
	a.call(unix.SYS_EXIT_GROUP, 0)
	a.bind(child)
	a.call(unix.SYS_WRITE, a.sync, a.u32s(ReportProcess, 0, 0, 0), 16)
}

// BecomeRoot takes user and group 0 of a new user namespace.
type BecomeRoot struct{}

func (BecomeRoot) String() string { return "become root of the user namespace" }

func (BecomeRoot) lower(a *asm) {
	a.call(unix.SYS_SETRESGID, 0, 0, 0)
	a.call(unix.SYS_SETRESUID, 0, 0, 0)
}

// LoopbackUp sets the loopback interface up, netdevice(7).
type LoopbackUp struct{}

func (LoopbackUp) String() string { return "set the loopback interface up" }

func (LoopbackUp) lower(a *asm) {
	s := a.result(unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	ifreq := make([]byte, 40)
	copy(ifreq, "lo")
	ifreq[16] = unix.IFF_UP | unix.IFF_RUNNING
	a.call(unix.SYS_IOCTL, s, unix.SIOCSIFFLAGS, a.bytes(ifreq, 8))
}

// Hostname sets the host name, or the NIS domain name.
type Hostname struct {
	Name   string `json:"name"`
	Domain bool   `json:"domain,omitempty"`
}

func (o Hostname) String() string {
	if o.Domain {
		return "set the domain name to " + o.Name
	}
	return "set the host name to " + o.Name
}

func (o Hostname) lower(a *asm) {
	nr := unix.SYS_SETHOSTNAME
	if o.Domain {
		nr = unix.SYS_SETDOMAINNAME
	}
	a.call(nr, o.Name, len(o.Name))
}

// WriteProc writes a file of proc: through the starter's own, which no container can have
// changed.
type WriteProc struct {
	Path  string `json:"path"` // below /proc
	Value string `json:"value"`
	What  string `json:"what"` // for people
	// Missing is what ENOENT means, if that is not clear.
	Missing string `json:"missing,omitempty"`
}

func (o WriteProc) String() string { return o.What }

func (o WriteProc) explain(errno unix.Errno) error {
	if errno != unix.ENOENT || o.Missing == "" {
		return nil
	}
	return fmt.Errorf("%s: %s: %w", o.What, o.Missing, errno)
}

func (o WriteProc) lower(a *asm) {
	fd := a.result(unix.SYS_OPENAT, a.old, "proc/"+o.Path, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	a.call(unix.SYS_WRITE, fd, o.Value, len(o.Value))
	a.call(unix.SYS_CLOSE, fd)
}

// Rlimit sets a resource limit, prlimit(2).
type Rlimit struct {
	Name       string `json:"name"`
	Resource   int    `json:"-"`
	Soft, Hard uint64
}

func (o Rlimit) String() string { return fmt.Sprintf("limit %s to %d, %d", o.Name, o.Soft, o.Hard) }

func (o Rlimit) lower(a *asm) {
	a.call(unix.SYS_PRLIMIT64, 0, o.Resource, a.u64s(o.Soft, o.Hard), 0)
}

// SignalHandler is the address in the zygote of what ends a process by a signal, with 128 and the
// signal's number.
const SignalHandler = 0x4000c0

// EndBySignals lets people end the process while it waits: the first process of a pid namespace
// ignores every signal that it has no handler for (pid_namespaces(7)). To execute a program takes
// the handlers away.
type EndBySignals struct{}

func (EndBySignals) String() string { return "let signals end the process while it waits" }

func (EndBySignals) lower(a *asm) {
	const (
		restorer = 0x04000000 // SA_RESTORER, which amd64 insists on
		setSize  = 8
	)
	action := a.u64s(SignalHandler, restorer, SignalHandler, 0) // struct sigaction
	for _, sig := range []unix.Signal{unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM} {
		a.call(unix.SYS_RT_SIGACTION, int(sig), action, 0, setSize)
	}
}

// Gate reports that all is done and waits to be let go.
type Gate struct{}

func (Gate) String() string { return "created; wait for start" }

func (Gate) lower(a *asm) {
	a.sendTrace()
	a.report(ReportCreated, 0)
	a.await(a.gate)
}

// Seccomp loads a filter, seccomp(2).
type Seccomp struct {
	Filter []unix.SockFilter `json:"-"`
	Flags  uint              `json:"flags,omitempty"`
	Insns  int               `json:"instructions"`
	// Notify reports the descriptor that loading gives, and waits until the maker has it.
	Notify bool `json:"notify,omitempty"`
}

func (o Seccomp) String() string {
	return fmt.Sprintf("load the seccomp filter (%d instructions)", len(o.Filter))
}

func (o Seccomp) lower(a *asm) {
	a.sendTrace() // what it needs may be refused from now on
	b := make([]byte, 0, 8*len(o.Filter))
	for _, f := range o.Filter {
		b = le.AppendUint16(b, f.Code)
		b = append(b, f.Jt, f.Jf)
		b = le.AppendUint32(b, f.K)
	}
	prog := a.u64s(uint64(len(o.Filter)), 0)
	a.pointAt(prog+8, a.bytes(b, 8))
	if !o.Notify {
		a.call(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, o.Flags, prog)
		return
	}
	listener, msg := a.newSlot(), a.u32s(ReportListener, 0, 0, 0)
	a.call(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, o.Flags, prog).to(listener)
	a.call(opPoke32, msg+4, listener)
	a.call(unix.SYS_WRITE, a.sync, msg, 16)
	a.await(a.sync)
}

// Chdir changes the working directory. What the user may not enter, root did before.
type Chdir struct {
	Path string `json:"path"`
	// First is the try before the user is changed; the second fails if both do.
	First bool `json:"first,omitempty"`
}

func (o Chdir) String() string { return "go to " + o.Path }

func (o Chdir) lower(a *asm) {
	if o.First {
		a.cwd = a.constant(1)
		a.call(unix.SYS_CHDIR, o.Path).to(a.cwd).forgiving(nil, unix.EACCES, unix.EPERM)
		return
	}
	done := &label{}
	a.call(opIfEq, a.cwd, 0).then(done)
	a.call(unix.SYS_CHDIR, o.Path)
	a.bind(done)
	// Whatever descriptor it was entered through, it must be below the root (CVE-2024-21626):
	// of another one getcwd(2) says "(unreachable)".
	const size = 4096
	name, outside, inside := a.bytes(make([]byte, size), 8), &label{}, &label{}
	a.call(unix.SYS_GETCWD, name, size)
	a.call(opIfMem32Eq, name, le.Uint32([]byte("(unr"))).then(outside)
	a.call(opIfEq, 0, 0).then(inside)
	a.bind(outside)
	a.call(opFail, int(unix.EXDEV))
	a.bind(inside)
}

func (o Chdir) explain(errno unix.Errno) error {
	if errno == unix.EXDEV {
		return fmt.Errorf("working directory %s is outside of the container", o.Path)
	}
	return nil
}

// Umask sets the mask of file modes.
type Umask struct {
	Mask uint32 `json:"mask"`
}

func (o Umask) String() string { return fmt.Sprintf("set umask %04o", o.Mask) }

func (o Umask) lower(a *asm) { a.call(unix.SYS_UMASK, o.Mask) }

// NoNewPrivs sets the process's attribute of this name, prctl(2).
type NoNewPrivs struct{}

func (NoNewPrivs) String() string { return "set no_new_privs" }

func (NoNewPrivs) lower(a *asm) { a.call(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }

// Keyring joins a new session keyring, keyctl(2), so that keys of the host's session are out
// of reach.
type Keyring struct {
	Name string `json:"name"`
}

func (o Keyring) String() string { return "join a new session keyring" }

func (o Keyring) lower(a *asm) {
	// The possessor may do everything; processes of the user's id may view, read, link and search.
	const perm = 0x3f1b0000
	key, end := a.newSlot(), &label{}
	a.call(unix.SYS_KEYCTL, unix.KEYCTL_JOIN_SESSION_KEYRING, o.Name, 0, 0, 0).to(key).forgiving(end, unix.ENOSYS)
	a.call(unix.SYS_KEYCTL, unix.KEYCTL_SETPERM, key, perm, 0, 0)
	a.bind(end)
}

// Scheduler sets the scheduling policy, sched_setattr(2).
type Scheduler struct {
	specs.Scheduler
	policy uint32
	flags  uint64
}

func (o Scheduler) String() string { return "set scheduling policy " + string(o.Policy) }

func (o Scheduler) lower(a *asm) {
	attr := a.u32s(56, o.policy) // struct sched_attr
	a.u64s(o.flags, uint64(uint32(o.Nice))|uint64(uint32(o.Priority))<<32, o.Runtime, o.Deadline, o.Period, 0)
	a.call(unix.SYS_SCHED_SETATTR, 0, attr, 0)
}

// IOPriority sets the I/O priority, ioprio_set(2).
type IOPriority struct {
	Class    string `json:"class"`
	Priority int    `json:"priority"`
	value    int
}

func (o IOPriority) String() string {
	return fmt.Sprintf("set I/O priority %s %d", o.Class, o.Priority)
}

func (o IOPriority) lower(a *asm) {
	const whoProcess = 1
	a.call(unix.SYS_IOPRIO_SET, whoProcess, 0, o.value)
}

// Personality sets the execution domain, personality(2).
type Personality struct {
	Domain string `json:"domain"`
	value  uint32
}

func (o Personality) String() string { return "set personality " + o.Domain }

func (o Personality) lower(a *asm) { a.call(unix.SYS_PERSONALITY, o.value) }

// Affinity sets which CPUs the process may run on, sched_setaffinity(2).
type Affinity struct {
	CPUs string `json:"cpus"`
	mask []byte
}

func (o Affinity) String() string { return "run on CPUs " + o.CPUs }

func (o Affinity) lower(a *asm) {
	a.call(unix.SYS_SCHED_SETAFFINITY, 0, len(o.mask), a.bytes(o.mask, 8))
}

// AllCPUs lets the process run on all CPUs of its cgroup, instead of those that its parent was
// bound to (sched_setaffinity(2)).
type AllCPUs struct{}

func (AllCPUs) String() string { return "run on all CPUs of the cgroup" }

func (AllCPUs) lower(a *asm) {
	mask := bytes.Repeat([]byte{0xff}, mostCPUs/8)
	a.call(unix.SYS_SCHED_SETAFFINITY, 0, len(mask), a.bytes(mask, 8)).forgiving(nil, unix.EPERM, unix.EINVAL)
}

// Keep keeps the starter's own root within reach, for a process that joins a mount namespace.
type Keep struct{}

func (Keep) String() string { return "prepare to join the container" }

func (Keep) lower(a *asm) {
	a.keepOld()
}

// Joined takes the root directory of the mount namespace that was joined.
type Joined struct{}

func (Joined) String() string { return "enter the container's root" }

func (Joined) lower(a *asm) {
	a.root = a.lasting()
	a.call(unix.SYS_OPENAT, unix.AT_FDCWD, "/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0).to(a.root)
	a.call(unix.SYS_CHDIR, "/")
}

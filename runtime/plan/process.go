package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/runtime"
)

// process is the last part of a container's plan: its program's surroundings.
func (b *builder) process() error {
	p := b.spec.Process
	if err := b.terminalOrStdio(p, true); err != nil {
		return err
	}
	b.add(Session{p.Terminal})
	if err := b.limits(p); err != nil {
		return err
	}
	if !b.opts.NoNewKeyring {
		b.add(Keyring{"_ses." + b.opts.ID})
	}
	prop, err := b.rootPropagation()
	if err != nil {
		return err
	}
	if prop&(unix.MS_SHARED|unix.MS_UNBINDABLE) == 0 {
		prop = 0 // the root has it already
	}
	b.add(Leave{prop})
	gate := b.given(FdGate)
	b.keepFds(gate)
	b.add(EndBySignals{})
	u, err := b.identity(p)
	if err != nil {
		return err
	}
	early := b.early(p, call{nr: unix.SYS_READ})
	switch {
	case early:
		b.seccomp(u)
	case b.opts.Seccomp != nil && b.opts.Seccomp.Notify:
		// As long as there is someone to take the descriptor.
		b.filter()
		early = true
	}
	b.add(Gate{})
	b.execute(p, !early)
	return nil
}

// early says whether the filter can be loaded before the last steps, those of Gate or Fork:
// whether it allows what they do. It better is, for it takes CAP_SYS_ADMIN, which the process
// then gives up before it is where the container could see it. With no_new_privs it takes
// none, and comes last.
func (b *builder) early(p *specs.Process, calls ...call) bool {
	f := b.opts.Seccomp
	if f == nil || p.NoNewPrivileges {
		return false
	}
	calls = append(calls, call{nr: unix.SYS_WRITE}, call{nr: unix.SYS_CAPSET}, call{unix.SYS_EXIT_GROUP, []uint64{0}},
		call{nr: unix.SYS_EXECVE})
	return !slices.ContainsFunc(calls, func(c call) bool { return !f.allows(c) })
}

// Exec is the plan of a further process of a container that runs: a process outside of the
// container's pid namespace joins everything else, gives up everything that the program must
// not have, and only then goes on as one that is inside, whose one act is to execute the
// program. So nothing of the host's is ever to be seen from within.
func Exec(spec *specs.Spec, p *specs.Process, join Namespaces, opts Options) (*Plan, error) {
	b := &builder{spec: spec, opts: opts, joins: true}
	b.given(FdSync)
	affinity := p.ExecCPUAffinity
	if affinity == nil {
		affinity = &specs.CPUAffinity{}
	}
	if err := b.affinity("initial", affinity.Initial); err != nil {
		return nil, err
	}
	b.joinCgroups()
	if affinity.Initial == "" && affinity.Final == "" {
		b.add(AllCPUs{})
	}
	if err := b.affinity("final", affinity.Final); err != nil {
		return nil, err
	}
	container := b.given(FdContainer)
	b.userns = join&unix.CLONE_NEWUSER != 0
	b.oomScore(p)
	b.raiseLimits(p)
	b.add(Keep{}, Setns{Fd: container, Types: join}, Joined{})
	if b.userns {
		b.add(BecomeRoot{})
	}
	if err := b.terminalOrStdio(p, false); err != nil {
		return nil, err
	}
	if err := b.limits(p); err != nil {
		return nil, err
	}
	if !opts.NoNewKeyring {
		b.add(Keyring{"_ses." + opts.ID})
	}
	b.keepFds(-1)
	u, err := b.identity(p)
	if err != nil {
		return nil, err
	}
	// An agent is given the descriptor of the process that it is for.
	notify := b.opts.Seccomp != nil && b.opts.Seccomp.Notify
	early := !notify && !b.schedulerLater &&
		b.early(p, call{nr: unix.SYS_SETPGID}, call{unix.SYS_CLONE, []uint64{unix.CLONE_PARENT, 0, 0, 0, 0}},
			call{nr: unix.SYS_SETSID}, call{unix.SYS_IOCTL, []uint64{0, unix.TIOCSCTTY, 0}})
	if early {
		b.seccomp(u)
	}
	// The leader of a session must live as long as it.
	b.add(Fork{}, Session{p.Terminal})
	if b.schedulerLater {
		b.add(Wait{PointScheduler})
	}
	b.execute(p, !early)
	return &b.plan, nil
}

func (b *builder) terminalOrStdio(p *specs.Process, bind bool) error {
	if !p.Terminal {
		b.add(Stdio{[3]Fd{b.given(FdStdin), b.given(FdStdout), b.given(FdStderr)}, p.User.UID})
		return nil
	}
	t := Terminal{Console: b.given(FdConsole), UID: p.User.UID, Bind: bind}
	if s := p.ConsoleSize; s != nil {
		t.Width, t.Height = uint16(s.Width), uint16(s.Height)
	}
	b.add(t)
	return nil
}

func (b *builder) keepFds(gate Fd) {
	k := KeepFds{Gate: gate}
	for i := range b.opts.Files {
		k.Files = append(k.Files, b.given(FdFile(i)))
	}
	b.add(k)
}

var ioClasses = map[specs.IOPriorityClass]int{specs.IOPRIO_CLASS_RT: 1, specs.IOPRIO_CLASS_BE: 2, specs.IOPRIO_CLASS_IDLE: 3}

// limits are what the process gets besides its user.
func (b *builder) limits(p *specs.Process) error {
	for _, l := range p.Rlimits {
		if l.Type != "RLIMIT_NOFILE" {
			b.add(Rlimit{l.Type, runtime.Rlimits[l.Type], l.Soft, l.Hard})
		}
	}
	if s := p.Scheduler; s != nil {
		op, err := scheduler(*s)
		if err != nil {
			return err
		}
		if b.schedulerLater = b.joins && undoneByFork(s); !b.schedulerLater {
			b.add(op)
		}
	}
	if io := p.IOPriority; io != nil {
		class, ok := ioClasses[io.Class]
		if !ok {
			return fmt.Errorf("process.ioPriority.class %q is unknown", io.Class)
		}
		b.add(IOPriority{string(io.Class), io.Priority, class<<13 | io.Priority})
	}
	if b.spec.Linux != nil && b.spec.Linux.MemoryPolicy != nil {
		op, err := memoryPolicy(b.spec.Linux.MemoryPolicy)
		if err != nil {
			return err
		}
		b.add(op)
	}
	if b.spec.Linux != nil && b.spec.Linux.Personality != nil {
		op, err := personality(b.spec.Linux.Personality)
		if err != nil {
			return err
		}
		b.add(op)
	}
	if p.ApparmorProfile != "" {
		b.add(WriteProc{Path: "thread-self/attr/apparmor/exec", Value: "exec " + p.ApparmorProfile, What: "apply AppArmor profile " +
			p.ApparmorProfile, Missing: "it is not loaded, see aa-status(8)"})
	}
	if p.SelinuxLabel != "" {
		b.add(WriteProc{Path: "thread-self/attr/exec", Value: p.SelinuxLabel, What: "apply SELinux label " + p.SelinuxLabel})
	}
	return nil
}

// oomScore comes before the process is in a user namespace, where it could not be lowered. In
// a new one it is from its beginning: there the maker does it, at PointMappings.
func (b *builder) oomScore(p *specs.Process) {
	if p.OOMScoreAdj != nil && b.plan.Mappings == nil {
		b.add(Keep{}, WriteProc{
			Path: "self/oom_score_adj", Value: strconv.Itoa(*p.OOMScoreAdj),
			What: fmt.Sprintf("set oom_score_adj to %d", *p.OOMScoreAdj),
		})
	}
}

// raiseLimits raises limits before the process is in a user namespace, where it could not. In
// a new one the maker does it, at PointMappings.
func (b *builder) raiseLimits(p *specs.Process) {
	if !b.userns || b.plan.Mappings != nil {
		return
	}
	for _, l := range EarlyLimits(p, b.opts.NoFile[1]) {
		b.add(Rlimit{l.Type, runtime.Rlimits[l.Type], l.Soft, l.Hard})
	}
}

// EarlyLimits are the limits of a process that is to be in a user namespace, as they are to be
// set before it is. Descriptors are not limited yet, but by the hard limit if it is above that
// of this process.
func EarlyLimits(p *specs.Process, noFile uint64) []specs.POSIXRlimit {
	var out []specs.POSIXRlimit
	for _, l := range p.Rlimits {
		switch {
		case l.Type != "RLIMIT_NOFILE":
			out = append(out, l)
		case l.Hard > noFile:
			l.Soft = l.Hard
			out = append(out, l)
		}
	}
	return out
}

// affinity binds an exec to CPUs before, or after, it is in the container's cgroup
// (config.md#linux-process).
func (b *builder) affinity(when, list string) error {
	if list == "" {
		return nil
	}
	mask, err := cpuMask(list)
	if err != nil {
		return fmt.Errorf("process.execCPUAffinity.%s: %w", when, err)
	}
	b.add(Affinity{list, mask})
	return nil
}

const mostCPUs = 1 << 13 // CONFIG_NR_CPUS of any distribution

// cpuMask is a list such as 0-3,7 as sched_setaffinity(2) takes it.
func cpuMask(list string) ([]byte, error) {
	mask, ok := bitmask(list, mostCPUs)
	if !ok {
		return nil, fmt.Errorf("%q is no list of CPUs, write it like 0-3,7", list)
	}
	return mask, nil
}

// bitmask has the bits of a list of numbers and ranges, each below most.
func bitmask(list string, most uint64) ([]byte, bool) {
	mask := make([]byte, most/8)
	for _, part := range strings.Split(strings.Trim(list, ","), ",") {
		from, to, isRange := strings.Cut(strings.TrimSpace(part), "-")
		first, err := strconv.ParseUint(from, 10, 32)
		last := first
		if err == nil && isRange {
			last, err = strconv.ParseUint(to, 10, 32)
		}
		if err != nil || last < first || last >= most {
			return nil, false
		}
		for c := first; c <= last; c++ {
			mask[c/8] |= 1 << (c % 8)
		}
	}
	return mask, true
}

// fileLimit comes when no more descriptors are needed than the program has.
func (b *builder) fileLimit(p *specs.Process) {
	for _, l := range p.Rlimits {
		if l.Type == "RLIMIT_NOFILE" {
			b.add(Rlimit{l.Type, unix.RLIMIT_NOFILE, l.Soft, l.Hard})
			return
		}
	}
	if b.opts.NoFile[1] != 0 {
		b.add(Rlimit{"RLIMIT_NOFILE", unix.RLIMIT_NOFILE, b.opts.NoFile[0], b.opts.NoFile[1]})
	}
}

// identity is the rest, in the order in which one takes away what the next does not need.
func (b *builder) identity(p *specs.Process) (User, error) {
	umask := uint32(0o022)
	if p.User.Umask != nil {
		umask = *p.User.Umask
	}
	cwd := p.Cwd
	if cwd == "" {
		cwd = "/"
	}
	b.fileLimit(p)
	b.add(Chdir{Path: cwd, First: true}, Umask{umask})
	user := b.user(p)
	// Without no_new_privs a filter takes CAP_SYS_ADMIN.
	user.KeepAdmin = b.opts.Seccomp != nil && !p.NoNewPrivileges
	if user.NoGroups && len(user.Groups) > 0 {
		return User{},
			fmt.Errorf("process.user.additionalGids cannot be set: only one group is mapped; map more, which takes newgidmap(1), or remove them")
	}
	b.add(user)
	b.show()
	b.add(Chdir{Path: cwd})
	if p.NoNewPrivileges {
		b.add(NoNewPrivs{})
	}
	b.add(FindProgram{cmp.Or(b.opts.Program, p.Args[0]), b.env(p)})
	return user, b.tooLong(p)
}

// seccomp loads the filter, and takes away what that took.
func (b *builder) seccomp(u User) {
	b.filter()
	if u.KeepAdmin {
		b.add(SetCaps{u.Caps})
	}
}

func (b *builder) filter() {
	b.add(Seccomp{
		Filter: b.opts.Seccomp.Program, Flags: b.opts.Seccomp.Flags, Insns: len(b.opts.Seccomp.Program),
		Notify: b.opts.Seccomp.Notify,
	})
}

// execute is the last step. A filter that comes just before it leaves it CAP_SYS_ADMIN, which
// execve(2) takes away: what a program is allowed depends on its file, its user and the
// inheritable, ambient and bounding sets alone (capabilities(7)).
func (b *builder) execute(p *specs.Process, filter bool) {
	if filter && b.opts.Seccomp != nil {
		b.filter()
	}
	b.add(Execute{Args: p.Args, Env: b.env(p), Path: b.opts.Program})
}

// tooLong refuses what execve(2) would not take: by then no one could be told.
func (b *builder) tooLong(p *specs.Process) error {
	const mostOne, mostAll = 128 << 10, 6 << 20 // MAX_ARG_STRLEN, three quarters of _STK_LIM
	all := 0
	for _, list := range [][]string{p.Args, b.env(p)} {
		for _, s := range list {
			all += len(s) + 1 + 8
			if len(s) >= mostOne {
				return fmt.Errorf("one of process.args and process.env has %d bytes, the kernel takes less than %d", len(s), mostOne)
			}
		}
	}
	if all > mostAll {
		return fmt.Errorf("process.args and process.env, the program's arguments, take %d bytes, the kernel takes %d at most", all, mostAll)
	}
	return nil
}

// env is the program's environment. As runc does, the last value of a variable counts, and
// HOME is added if it is missing or empty.
func (b *builder) env(p *specs.Process) []string {
	last := make(map[string]int, len(p.Env))
	for i, e := range p.Env {
		name, _, _ := strings.Cut(e, "=")
		last[name] = i
	}
	out := make([]string, 0, len(p.Env)+1)
	for i, e := range p.Env {
		if name, _, _ := strings.Cut(e, "="); last[name] == i && (b.opts.Home == "" || e != "HOME=") {
			out = append(out, e)
		}
	}
	if at, has := last["HOME"]; b.opts.Home != "" && (!has || p.Env[at] == "HOME=") {
		out = append(out, "HOME="+b.opts.Home)
	}
	return out
}

func (b *builder) user(p *specs.Process) User {
	u := User{UID: p.User.UID, GID: p.User.GID, Groups: p.User.AdditionalGids, NoGroups: b.opts.NoGroups}
	c := p.Capabilities
	if c == nil {
		return u
	}
	for _, s := range []struct {
		from []string
		to   *CapSet
	}{
		{c.Bounding, &u.Caps.Bounding},
		{c.Effective, &u.Caps.Effective},
		{c.Permitted, &u.Caps.Permitted},
		{c.Inheritable, &u.Caps.Inheritable},
		{c.Ambient, &u.Caps.Ambient},
	} {
		*s.to = capSet(s.from)
		if !b.userns { // in a user namespace of its own the process has all
			*s.to &= b.opts.Permitted
		}
	}
	u.Caps.Ambient &= u.Caps.Permitted & u.Caps.Inheritable // the kernel takes no others; see NotAmbient
	return u
}

var schedulers = map[specs.LinuxSchedulerPolicy]uint32{
	specs.SchedOther: unix.SCHED_NORMAL, specs.SchedFIFO: unix.SCHED_FIFO, specs.SchedRR: unix.SCHED_RR,
	specs.SchedBatch: unix.SCHED_BATCH, specs.SchedIdle: unix.SCHED_IDLE, specs.SchedDeadline: unix.SCHED_DEADLINE,
	specs.SchedISO: 4, // reserved but not implemented by Linux
}

var schedulerFlags = map[specs.LinuxSchedulerFlag]uint64{
	specs.SchedFlagResetOnFork: unix.SCHED_FLAG_RESET_ON_FORK, specs.SchedFlagReclaim: unix.SCHED_FLAG_RECLAIM,
	specs.SchedFlagDLOverrun: unix.SCHED_FLAG_DL_OVERRUN, specs.SchedFlagKeepPolicy: unix.SCHED_FLAG_KEEP_POLICY,
	specs.SchedFlagKeepParams: unix.SCHED_FLAG_KEEP_PARAMS, specs.SchedFlagUtilClampMin: unix.SCHED_FLAG_UTIL_CLAMP_MIN,
	specs.SchedFlagUtilClampMax: unix.SCHED_FLAG_UTIL_CLAMP_MAX,
}

// undoneByFork says whether a process with this scheduler cannot fork, or its child does not have
// it (sched(7)).
func undoneByFork(s *specs.Scheduler) bool {
	return s.Policy == specs.SchedDeadline || slices.Contains(s.Flags, specs.SchedFlagResetOnFork)
}

// SchedAttr is a scheduler for sched_setattr(2), for PointScheduler.
func SchedAttr(s specs.Scheduler) (*unix.SchedAttr, error) {
	op, err := scheduler(s)
	if err != nil {
		return nil, err
	}
	return &unix.SchedAttr{
		Size: unix.SizeofSchedAttr, Policy: op.policy, Flags: op.flags, Nice: s.Nice, Priority: uint32(s.Priority),
		Runtime: s.Runtime, Deadline: s.Deadline, Period: s.Period,
	}, nil
}

func scheduler(s specs.Scheduler) (Scheduler, error) {
	policy, ok := schedulers[s.Policy]
	if !ok {
		return Scheduler{}, fmt.Errorf("process.scheduler.policy %q is unknown", s.Policy)
	}
	out := Scheduler{Scheduler: s, policy: policy}
	for _, f := range s.Flags {
		flag, ok := schedulerFlags[f]
		if !ok {
			return Scheduler{}, fmt.Errorf("process.scheduler.flags: %q is unknown", f)
		}
		out.flags |= flag
	}
	return out, nil
}

func personality(p *specs.LinuxPersonality) (Personality, error) {
	if len(p.Flags) > 0 {
		return Personality{}, fmt.Errorf("linux.personality.flags are not supported, as the specification has none")
	}
	switch p.Domain {
	case specs.PerLinux:
		return Personality{string(p.Domain), 0}, nil
	case specs.PerLinux32:
		return Personality{string(p.Domain), 8}, nil
	}
	return Personality{}, fmt.Errorf("linux.personality.domain %q is unknown, use LINUX or LINUX32", p.Domain)
}

package plan

import (
	"fmt"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// Options are what a plan depends on beyond the configuration: facts of the host, and what
// the caller wants.
type Options struct {
	// Rootfs is the absolute path of the root file system; Bundle that of the bundle, which
	// relative sources of bind mounts are below.
	Rootfs, Bundle string
	// Hide is a directory of the host's that is empty to hooks; see HostView.
	Hide     string
	Features Features
	Cgroup   Cgroup
	// Seccomp is the compiled linux.seccomp, nil if there is none.
	Seccomp *Filter
	// Files is how many descriptors the program gets beyond the standard streams.
	Files int
	// NoNewKeyring leaves the session keyring of the caller to the program.
	NoNewKeyring bool
	// ID names the session keyring.
	ID string
	// Home is the HOME that the program gets if its environment has none.
	Home string
	// NoFile is the caller's own RLIMIT_NOFILE, soft and hard, which the program gets if the
	// configuration does not say.
	NoFile [2]uint64
	// Permitted are the capabilities that the caller has: no one can give others.
	Permitted CapSet
	// Gather is set if the maker may not copy the host's mounts. The process takes them then: see
	// Take. It is for who is not root of the host.
	Gather bool
	// RootFlags are the flags of mount(2) that the root file system's mount has, which a kernel
	// without mount_setattr(2) would take away with making it read-only.
	RootFlags uintptr
	// NoPivot is Zygote's, for a process that gathers.
	NoPivot bool
	// Program is what is executed if it is not the process's first argument.
	Program string
	// NoGroups is set if supplementary groups cannot be set: see user_namespaces(7) on the file
	// setgroups.
	NoGroups bool
	// IsDir says whether the source of a bind mount is a directory.
	IsDir func(path string) (bool, error)
}

// Cgroup says how cgroups are mounted on the host and which are the container's.
type Cgroup struct {
	// Unified is set if the host has only the unified hierarchy, which the child is cloned
	// into.
	Unified bool
	// Tasks are the files "tasks" of the container's cgroups of version 1 (and
	// cgroup.procs of the unified one of a hybrid host), one for each hierarchy.
	Tasks []string
	// Wait is set if the maker moves the process into its cgroups, as systemd's are joined.
	Wait bool
	// Hierarchies are what a cgroup mount of the container shows on version 1.
	Hierarchies []Hierarchy
	// Own is the container's cgroup of the unified hierarchy, for a mount without a cgroup
	// namespace.
	Own string
}

// Hierarchy is a mounted hierarchy of version 1.
type Hierarchy struct {
	// Name is the directory below /sys/fs/cgroup, Options what mount(2) needs to find it
	// again, such as "cpu,cpuacct".
	Name, Options string
	// Links are names of controllers that point to Name.
	Links []string
	// Path is the container's cgroup in it, or the maker's, where the container stays unless Own.
	Path string
	Own  bool
}

type builder struct {
	plan   Plan
	userns bool // the process is in a user namespace that is not this process's
	// joins is set for a further process, schedulerLater if the maker sets its scheduler.
	joins, schedulerLater bool
	// gatherAt is where in the plan the process takes what it needs of the host.
	gatherAt int
	spec     *specs.Spec
	opts     Options
}

func (b *builder) add(ops ...Op) { b.plan.Ops = append(b.plan.Ops, ops...) }

// has says whether the container has a namespace of a type, and the path if it joins one.
func (b *builder) namespace(t specs.LinuxNamespaceType) (has bool, at string) {
	for _, ns := range b.spec.Linux.Namespaces {
		if ns.Type == t {
			return true, ns.Path
		}
	}
	return false, ""
}

func (b *builder) isNew(t specs.LinuxNamespaceType) bool {
	has, at := b.namespace(t)
	return has && at == ""
}

// Create is the plan of a container. The specification must have passed
// validate.Spec. ErrUnsupported if another engine has to make the container.
func Create(spec *specs.Spec, opts Options) (*Plan, error) {
	if spec.Linux == nil {
		return nil, unsupported("a configuration without linux")
	}
	b := &builder{spec: spec, opts: opts}
	if err := b.supported(); err != nil {
		return nil, err
	}
	b.given(FdSync)
	for _, step := range []func() error{
		b.namespaces, b.mounts, b.device, b.hooks, b.paths, b.finishMounts, b.hostnames, b.sysctls, b.process, b.gathered,
	} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	return &b.plan, nil
}

// supported refuses what no plan can express.
func (b *builder) supported() error {
	l := b.spec.Linux
	has, _ := b.namespace(specs.MountNamespace)
	switch {
	case !has || !b.isNew(specs.MountNamespace):
		return unsupported("a container without a mount namespace of its own")
	case len(l.TimeOffsets) > 0 && !b.isNew(specs.TimeNamespace):
		return fmt.Errorf("linux.timeOffsets need a new time namespace, add one to linux.namespaces")
	}
	return nil
}

var cloneFlags = []struct {
	kind specs.LinuxNamespaceType
	flag Namespaces
}{
	{specs.UserNamespace, unix.CLONE_NEWUSER},
	{specs.PIDNamespace, unix.CLONE_NEWPID},
	{specs.NetworkNamespace, unix.CLONE_NEWNET},
	{specs.IPCNamespace, unix.CLONE_NEWIPC},
	{specs.UTSNamespace, unix.CLONE_NEWUTS},
	{specs.MountNamespace, unix.CLONE_NEWNS},
	{specs.CgroupNamespace, unix.CLONE_NEWCGROUP},
	{specs.TimeNamespace, unix.CLONE_NEWTIME},
}

// namespaces are made and joined in an order that the kernel's checks ask for: that of users
// before all that are new, so that they belong to it, but after those that are joined and may
// belong to the host.
func (b *builder) namespaces() error {
	var fresh Namespaces
	for _, f := range cloneFlags {
		if b.isNew(f.kind) && f.kind != specs.TimeNamespace {
			fresh |= f.flag
		}
	}
	// A cgroup namespace shows what the process is in when it is made.
	cgroup := fresh & unix.CLONE_NEWCGROUP
	fresh &^= cgroup
	// That of time cannot be cloned, and only those that come later are in it, as with that of
	// pids when it is joined.
	clock := b.isNew(specs.TimeNamespace)
	_, userPath := b.namespace(specs.UserNamespace)
	_, pidPath := b.namespace(specs.PIDNamespace)
	_, timePath := b.namespace(specs.TimeNamespace)
	later := fresh & unix.CLONE_NEWPID // what only a child gets
	fork := pidPath != "" || timePath != "" || clock
	user := fresh & unix.CLONE_NEWUSER
	joins := slices.ContainsFunc(b.spec.Linux.Namespaces, func(n specs.LinuxNamespace) bool { return n.Path != "" })
	switch {
	case userPath != "" || user != 0 && joins:
		fork = fork || later != 0
	case fork:
		b.plan.Namespaces = user
	default:
		b.plan.Namespaces = fresh
	}
	fresh &^= b.plan.Namespaces | user
	if user != 0 {
		b.plan.Mappings = mappings(b.spec.Linux.UIDMappings, b.spec.Linux.GIDMappings)
	}
	b.userns = user != 0 || userPath != ""
	if b.plan.Namespaces&user != 0 {
		b.add(Wait{PointMappings})
	}
	if b.plan.Namespaces&unix.CLONE_NEWNS != 0 {
		b.gather() // as the caller, who finds more of the host's files than root of the user namespace may
	}
	b.oomScore(b.spec.Process)
	b.raiseLimits(b.spec.Process)
	b.joinCgroups()
	b.add(AllCPUs{})
	b.joinNamespaces()
	if user&^b.plan.Namespaces != 0 {
		b.add(Unshare{user}, Wait{PointMappings})
	}
	if b.userns {
		b.add(BecomeRoot{})
		b.show()
	}
	if clock {
		b.add(Unshare{unix.CLONE_NEWTIME}, Wait{PointTime})
	}
	if fork {
		if later != 0 {
			b.add(Unshare{later})
		}
		b.add(Fork{})
		fresh &^= later
	}
	if fresh|cgroup != 0 {
		b.add(Unshare{fresh | cgroup})
	}
	if fresh&unix.CLONE_NEWNS != 0 {
		b.gather()
	}
	if len(b.spec.Linux.NetDevices) > 0 {
		b.add(Wait{PointNetwork})
	}
	if b.isNew(specs.NetworkNamespace) {
		b.add(LoopbackUp{})
	}
	return nil
}

// hooks run when all is mounted, and before the container's root is the root directory
// (config.md#createruntime-hooks).
func (b *builder) hooks() error {
	if b.hooked() {
		b.add(Wait{PointHooks})
	}
	return nil
}

func (b *builder) hooked() bool {
	h := b.spec.Hooks
	//lint:ignore SA1019 prestart is deprecated but still part of the spec
	return h != nil && len(h.Prestart)+len(h.CreateRuntime)+len(h.CreateContainer) > 0
}

// joinNamespaces joins those that have a path, that of users last.
func (b *builder) joinNamespaces() {
	join := func(flag Namespaces, name, at string) {
		// Not blocking, should it be a FIFO.
		fd := b.fd(Open{Name: name + " namespace", Path: at, Flags: unix.O_RDONLY | unix.O_NONBLOCK})
		b.add(Setns{fd, flag, at})
	}
	for _, user := range []bool{false, true} {
		for _, f := range cloneFlags {
			if _, at := b.namespace(f.kind); at != "" && (f.kind == specs.UserNamespace) == user {
				join(f.flag, string(f.kind), at)
			}
		}
	}
}

func (b *builder) joinCgroups() {
	if b.opts.Cgroup.Wait {
		b.add(Wait{PointCgroup})
	}
	if len(b.opts.Cgroup.Tasks) == 0 {
		return
	}
	var fds []Fd
	for _, t := range b.opts.Cgroup.Tasks {
		fds = append(fds, b.fd(Open{Name: "cgroup " + t, Path: t, Flags: unix.O_WRONLY}))
	}
	b.add(JoinCgroups{fds})
}

func mappings(uids, gids []specs.LinuxIDMapping) *Mappings {
	list := func(in []specs.LinuxIDMapping) (out []Mapping) {
		for _, m := range in {
			out = append(out, Mapping{m.ContainerID, m.HostID, m.Size})
		}
		return out
	}
	return &Mappings{UIDs: list(uids), GIDs: list(gids)}
}

func (b *builder) hostnames() error {
	if name := b.spec.Hostname; name != "" {
		b.add(Hostname{Name: name})
	}
	if name := b.spec.Domainname; name != "" {
		b.add(Hostname{Name: name, Domain: true})
	}
	return nil
}

package plan_test

import (
	"os"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/runtime/plan"
)

// topics are the variations of the base container, by golden file.
var topics = map[string][]mutation{
	"bind_options": eachOption("bind", specs.Mount{Destination: "/data", Type: "bind", Source: "/data"}),
	"fs_options":   eachOption("tmpfs", specs.Mount{Destination: "/data", Type: "tmpfs", Source: "tmpfs"}),
	"mounts":       mountCases,
	"namespaces":   namespaceCases,
	"users":        userCases,
	"devices":      deviceCases,
	"paths":        pathCases,
	"cgroups":      cgroupCases,
	"process":      processCases,
	"capabilities": capabilityCases,
	"seccomp":      seccompCases,
	"kernel":       kernelCases,
	"unsupported":  unsupportedCases,
}

// Options of config-linux.md, and two that only file systems know.
const mountOptions = `ro rw nosuid suid nodev dev noexec exec noatime atime nodiratime diratime strictatime nostrictatime
	relatime norelatime nosymfollow symfollow sync async dirsync mand nomand iversion noiversion lazytime nolazytime silent loud
	remount bind rbind defaults private rprivate slave rslave shared rshared unbindable runbindable
	rro rrw rnosuid rsuid rnodev rdev rnoexec rexec rnoatime ratime rnodiratime rdiratime rstrictatime rnostrictatime
	rrelatime rnorelatime rnosymfollow rsymfollow idmap ridmap tmpcopyup size=64k mode=700`

// eachOption mounts it with each option, alone.
func eachOption(kind string, m specs.Mount) []mutation {
	var list []mutation
	for _, o := range strings.Fields(mountOptions) {
		list = append(list, mounting(kind+" "+o, with(m, o)))
	}
	return list
}

func with(m specs.Mount, options ...string) specs.Mount { m.Options = options; return m }

func mounting(name string, m ...specs.Mount) mutation {
	return onSpec(name, func(s *specs.Spec) { s.Mounts = append(s.Mounts, m...) })
}

func onProcess(name string, change func(*specs.Process)) mutation {
	return onSpec(name, func(s *specs.Spec) { change(s.Process) })
}

func onLinux(name string, change func(*specs.Linux)) mutation {
	return onSpec(name, func(s *specs.Spec) { change(s.Linux) })
}

func onOptions(name string, change func(*plan.Options)) mutation {
	return mutation{name, func(_ *specs.Spec, o *plan.Options) { change(o) }}
}

var (
	bind = specs.Mount{Destination: "/data", Type: "bind", Source: "/data"}
	ids  = []specs.LinuxIDMapping{{ContainerID: 0, HostID: 100000, Size: 65536}}
)

var mountCases = []mutation{
	mounting("file", specs.Mount{Destination: "/etc/hosts", Type: "bind", Source: "/pod/file", Options: []string{"rbind", "ro"}}),
	mounting("relative source", specs.Mount{Destination: "/data", Type: "bind", Source: "data"}),
	mounting("relative destination", specs.Mount{Destination: "data", Type: "bind", Source: "/data"}),
	mounting("destination with dots", specs.Mount{Destination: "/a/../b/./c/", Type: "bind", Source: "/data"}),
	mounting("missing source", specs.Mount{Destination: "/data", Type: "bind", Source: "/missing"}),
	mounting("type none", specs.Mount{Destination: "/data", Type: "none", Source: "/data", Options: []string{"rbind"}}),
	mounting("no type", specs.Mount{Destination: "/data", Source: "/data", Options: []string{"bind"}}),
	mounting("neither type nor bind", specs.Mount{Destination: "/data", Source: "/data"}),
	mounting("over the root", specs.Mount{Destination: "/", Type: "bind", Source: "/data"}),
	mounting("options that cancel out", with(bind, "ro", "rw", "nosuid", "suid")),
	mounting("usual volume", with(bind, "rbind", "rprivate", "ro")),
	mounting("volume that sees later mounts", with(bind, "rbind", "rslave")),
	mounting("recursively read-only", with(bind, "rbind", "rro")),
	mounting("access times", with(bind, "noatime", "nodiratime")),
	mounting("of what another has brought", bind, specs.Mount{
		Destination: "/copy", Type: "bind", Source: "/bundle/rootfs/data/sub",
		Options: []string{"rbind", "ro"},
	}),
	mounting("of what another has brought, mapped", bind, specs.Mount{
		Destination: "/copy", Type: "bind", Source: "/bundle/rootfs/data/sub",
		Options: []string{"idmap"},
	}),
	mounting("to the root file system's own path", specs.Mount{Destination: "/bundle/rootfs/data", Type: "bind", Source: "/data"}),
	mounting("to proc by that path", specs.Mount{Destination: "/bundle/rootfs/proc/x", Type: "bind", Source: "/data"}),
	mounting("of the image's own", specs.Mount{Destination: "/copy", Type: "bind", Source: "/bundle/rootfs/srv"}),
	mounting("twice", bind, specs.Mount{Destination: "/data", Type: "tmpfs", Source: "tmpfs"}),
	mounting("mapped by its own ids", specs.Mount{Destination: "/data", Type: "bind", Source: "/data", UIDMappings: ids, GIDMappings: ids}),
	mounting("mapped tmpfs", specs.Mount{Destination: "/data", Type: "tmpfs", UIDMappings: ids, GIDMappings: ids}),
	mounting("copied-up tmpfs", specs.Mount{
		Destination: "/run", Type: "tmpfs", Source: "tmpfs",
		Options: []string{"tmpcopyup", "ro", "mode=700"},
	}),
	mounting("copied-up proc", specs.Mount{Destination: "/p", Type: "proc", Source: "proc", Options: []string{"tmpcopyup"}}),
	onLinux("label", func(l *specs.Linux) { l.MountLabel = "system_u:object_r:container_file_t:s0:c1,c2" }),
	mounting("read-only tmpfs", specs.Mount{Destination: "/run", Type: "tmpfs", Source: "tmpfs", Options: []string{"ro", "size=64k"}}),
	mounting("mqueue", specs.Mount{Destination: "/dev/mqueue", Type: "mqueue", Source: "mqueue"}),
	mounting("overlay", specs.Mount{Destination: "/merged", Type: "overlay", Source: "overlay", Options: []string{"lowerdir=/a:/b"}}),
	mounting("a file of proc", specs.Mount{Destination: "/proc/cpuinfo", Type: "bind", Source: "/lxcfs/file"}),
	mounting("another file of proc", specs.Mount{Destination: "/proc/self/environ", Type: "bind", Source: "/file"}),
	mounting("/dev of the host", specs.Mount{Destination: "/dev", Type: "bind", Source: "/dev", Options: []string{"rbind"}}),
	onSpec("none", func(s *specs.Spec) { s.Mounts = nil }),
	onSpec("read-only root", func(s *specs.Spec) { s.Root.Readonly = true }),
	onLinux("root private", func(l *specs.Linux) { l.RootfsPropagation = "private" }),
	onLinux("root shared", func(l *specs.Linux) { l.RootfsPropagation = "rshared" }),
	onLinux("root unbindable", func(l *specs.Linux) { l.RootfsPropagation = "unbindable" }),
	onLinux("root propagation unknown", func(l *specs.Linux) { l.RootfsPropagation = "loud" }),
	{"an old kernel", func(s *specs.Spec, o *plan.Options) {
		s.Mounts = append(s.Mounts, with(bind, "rbind", "ro", "rslave"))
		s.Root.Readonly, o.RootFlags = true, unix.MS_NOSUID|unix.MS_NODEV
		o.Features = plan.Features{}
	}},
}

func namespace(t specs.LinuxNamespaceType, path string) func(*specs.Linux) {
	return func(l *specs.Linux) {
		for i := range l.Namespaces {
			if l.Namespaces[i].Type == t {
				l.Namespaces[i].Path = path
				return
			}
		}
		l.Namespaces = append(l.Namespaces, specs.LinuxNamespace{Type: t, Path: path})
	}
}

func without(t specs.LinuxNamespaceType) func(*specs.Linux) {
	return func(l *specs.Linux) {
		var rest []specs.LinuxNamespace
		for _, n := range l.Namespaces {
			if n.Type != t {
				rest = append(rest, n)
			}
		}
		l.Namespaces = rest
	}
}

var namespaceCases = []mutation{
	onLinux("join network", namespace(specs.NetworkNamespace, "/ns/net")),
	onLinux("join ipc", namespace(specs.IPCNamespace, "/ns/ipc")),
	onLinux("join uts", namespace(specs.UTSNamespace, "/ns/uts")),
	onLinux("join cgroup", namespace(specs.CgroupNamespace, "/ns/cgroup")),
	onLinux("join pid", namespace(specs.PIDNamespace, "/ns/pid")),
	onLinux("join mount", namespace(specs.MountNamespace, "/ns/mnt")),
	onLinux("join user", namespace(specs.UserNamespace, "/ns/user")),
	onLinux("join time", namespace(specs.TimeNamespace, "/ns/time")),
	onLinux("join those of a pod", func(l *specs.Linux) {
		namespace(specs.NetworkNamespace, "/ns/net")(l)
		namespace(specs.IPCNamespace, "/ns/ipc")(l)
		namespace(specs.UTSNamespace, "/ns/uts")(l)
	}),
	onLinux("network of the host", without(specs.NetworkNamespace)),
	onLinux("ipc of the host", without(specs.IPCNamespace)),
	onLinux("pid of the host", without(specs.PIDNamespace)),
	onLinux("cgroup of the host", without(specs.CgroupNamespace)),
	onLinux("mount of the host", without(specs.MountNamespace)),
	onLinux("network devices", func(l *specs.Linux) { l.NetDevices = map[string]specs.LinuxNetDevice{"eth0": {}} }),
	onLinux("network devices into a namespace that is joined", func(l *specs.Linux) {
		namespace(specs.NetworkNamespace, "/ns/net")(l)
		l.NetDevices = map[string]specs.LinuxNetDevice{"eth0": {}}
	}),
	onLinux("new time", namespace(specs.TimeNamespace, "")),
	onLinux("time offsets", func(l *specs.Linux) {
		namespace(specs.TimeNamespace, "")(l)
		l.TimeOffsets = map[string]specs.LinuxTimeOffset{"boottime": {Secs: 100}}
	}),
	onSpec("uts of the host", func(s *specs.Spec) { s.Hostname = ""; without(specs.UTSNamespace)(s.Linux) }),
	onSpec("domain name", func(s *specs.Spec) { s.Domainname = "sea" }),
}

// gathering is for a maker who is not root of the host.
func gathering(name string, change func(*specs.Spec, *plan.Options)) mutation {
	return mutation{"rootless: " + name, func(s *specs.Spec, o *plan.Options) {
		o.Gather, o.Cgroup = true, plan.Cgroup{}
		change(s, o)
	}}
}

func newUser(l *specs.Linux) {
	namespace(specs.UserNamespace, "")(l)
	l.UIDMappings, l.GIDMappings = ids, ids
}

var userCases = []mutation{
	onLinux("new user namespace", newUser),
	onSpec("user namespace and pid that is joined", func(s *specs.Spec) {
		newUser(s.Linux)
		namespace(specs.PIDNamespace, "/ns/pid")(s.Linux)
	}),
	onSpec("user namespace with a mapped volume", func(s *specs.Spec) {
		newUser(s.Linux)
		s.Mounts = append(s.Mounts, with(bind, "rbind", "idmap"))
	}),
	onSpec("user namespace that is joined, with a mapped volume", func(s *specs.Spec) {
		namespace(specs.UserNamespace, "/ns/user")(s.Linux)
		s.Mounts = append(s.Mounts, with(bind, "rbind", "idmap"))
	}),
	onSpec("user namespace with a device", func(s *specs.Spec) {
		newUser(s.Linux)
		s.Linux.Devices = []specs.LinuxDevice{{Path: "/dev/fuse", Type: "c", Major: 10, Minor: 229}}
	}),
	onSpec("rootless: one id", func(s *specs.Spec) {
		newUser(s.Linux)
		one := []specs.LinuxIDMapping{{HostID: 1000, Size: 1}}
		s.Linux.UIDMappings, s.Linux.GIDMappings = one, one
		without(specs.NetworkNamespace)(s.Linux)
		s.Mounts = append(s.Mounts[:3],
			specs.Mount{Destination: "/sys", Type: "none", Source: "/sys", Options: []string{"rbind", "nosuid", "noexec", "nodev", "ro"}})
	}),
	gathering("an ordinary user", func(s *specs.Spec, o *plan.Options) {
		newUser(s.Linux)
		one := []specs.LinuxIDMapping{{HostID: 1000, Size: 1}}
		s.Linux.UIDMappings, s.Linux.GIDMappings = one, one
		o.NoGroups = true
		s.Mounts = append(s.Mounts[:3],
			specs.Mount{Destination: "/sys", Type: "none", Source: "/sys", Options: []string{"rbind", "nosuid", "noexec", "nodev", "ro"}})
	}),
	gathering("an ordinary user, with groups that cannot be set", func(s *specs.Spec, o *plan.Options) {
		newUser(s.Linux)
		o.NoGroups, s.Process.User.AdditionalGids = true, []uint32{5}
	}),
	gathering("an ordinary user, with an id-mapped volume", func(s *specs.Spec, _ *plan.Options) {
		newUser(s.Linux)
		s.Mounts = append(s.Mounts, with(bind, "idmap"))
	}),
	gathering("an ordinary user, with hooks and proc of the host, on a ramdisk", func(s *specs.Spec, o *plan.Options) {
		newUser(s.Linux)
		without(specs.PIDNamespace)(s.Linux)
		s.Mounts[0] = specs.Mount{Destination: "/proc", Type: "bind", Source: "/proc", Options: []string{"rbind"}}
		s.Hooks = &specs.Hooks{CreateRuntime: []specs.Hook{{Path: "/bin/hook"}}}
		o.NoPivot = true
	}),
	gathering("root of a user namespace", func(*specs.Spec, *plan.Options) {}),
	gathering("a user namespace that is joined", func(s *specs.Spec, _ *plan.Options) { namespace(specs.UserNamespace, "/ns/user")(s.Linux) }),
	gathering("an old kernel", func(s *specs.Spec, o *plan.Options) {
		newUser(s.Linux)
		s.Mounts, o.Features = append(s.Mounts, with(bind, "rro")), plan.Features{}
	}),
	onProcess("uid and gid", func(p *specs.Process) { p.User = specs.User{UID: 1000, GID: 100} }),
	onProcess("groups", func(p *specs.Process) { p.User.AdditionalGids = []uint32{10, 20} }),
	onProcess("umask", func(p *specs.Process) { m := uint32(0o77); p.User.Umask = &m }),
	onProcess("no HOME", func(p *specs.Process) { p.Env = []string{"PATH=/bin"} }),
}

var deviceCases = []mutation{
	onLinux("character", func(l *specs.Linux) {
		l.Devices = []specs.LinuxDevice{{Path: "/dev/fuse", Type: "c", Major: 10, Minor: 229}}
	}),
	onLinux("block with owner and mode", func(l *specs.Linux) {
		mode, id := fileMode(0o640), uint32(6)
		l.Devices = []specs.LinuxDevice{{Path: "/dev/disk", Type: "b", Major: 8, Minor: 1, FileMode: mode, UID: &id, GID: &id}}
	}),
	onLinux("fifo", func(l *specs.Linux) { l.Devices = []specs.LinuxDevice{{Path: "/dev/pipe", Type: "p"}} }),
	onLinux("unbuffered, outside of /dev", func(l *specs.Linux) {
		l.Devices = []specs.LinuxDevice{{Path: "/srv/x", Type: "u", Major: 1, Minor: 3}}
	}),
	onLinux("instead of a default one", func(l *specs.Linux) {
		l.Devices = []specs.LinuxDevice{{Path: "/dev/null", Type: "c", Major: 1, Minor: 3}}
	}),
	onLinux("ptmx", func(l *specs.Linux) {
		l.Devices = []specs.LinuxDevice{{Path: "/dev/ptmx", Type: "c", Major: 5, Minor: 2}}
	}),
	onLinux("unknown type", func(l *specs.Linux) { l.Devices = []specs.LinuxDevice{{Path: "/dev/x", Type: "x"}} }),
	onLinux("negative number", func(l *specs.Linux) { l.Devices = []specs.LinuxDevice{{Path: "/dev/x", Type: "c", Major: -1}} }),
}

var pathCases = []mutation{
	onLinux("nothing masked", func(l *specs.Linux) { l.MaskedPaths = nil }),
	onLinux("nothing read-only", func(l *specs.Linux) { l.ReadonlyPaths = nil }),
	onLinux("masked twice", func(l *specs.Linux) { l.MaskedPaths = append(l.MaskedPaths, l.MaskedPaths[0]) }),
	onLinux("more of both", func(l *specs.Linux) {
		l.MaskedPaths = append(l.MaskedPaths, "/proc/timer_list")
		l.ReadonlyPaths = append(l.ReadonlyPaths, "/proc/bus", "/proc/irq")
	}),
	onProcess("working directory", func(p *specs.Process) { p.Cwd = "/srv/app" }),
	onOptions("another root", func(o *plan.Options) { o.Rootfs = "/var/lib/images/one" }),
}

var (
	cgroupMount = specs.Mount{
		Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup",
		Options: []string{"nosuid", "noexec", "nodev", "relatime", "ro"},
	}
	unified     = plan.Cgroup{Unified: true, Own: "/sys/fs/cgroup/boats/one"}
	hierarchies = []plan.Hierarchy{
		{Name: "cpu,cpuacct", Options: "cpu,cpuacct", Links: []string{"cpu", "cpuacct"}, Path: "/sys/fs/cgroup/cpu,cpuacct/boats/one"},
		{Name: "systemd", Options: "none,name=systemd", Path: "/sys/fs/cgroup/systemd/boats/one"},
		{Name: "unified", Path: "/sys/fs/cgroup/unified/boats/one"},
	}
	// The container has a cgroup of its own in the first only.
	ownHierarchies = []plan.Hierarchy{
		{Name: "memory", Options: "memory", Path: "/sys/fs/cgroup/memory/boats/one", Own: true}, hierarchies[1],
	}
)

// mountedOn mounts cgroups on such a host.
func mountedOn(name string, cg plan.Cgroup, change func(*specs.Linux), options ...string) mutation {
	m := cgroupMount
	if options != nil {
		m.Options = options
	}
	return mutation{name, func(s *specs.Spec, o *plan.Options) {
		s.Mounts = append(s.Mounts, m)
		o.Cgroup = cg
		change(s.Linux)
	}}
}

var cgroupCases = []mutation{
	onOptions("version 2", func(o *plan.Options) { o.Cgroup = unified }),
	onOptions("none", func(o *plan.Options) { o.Cgroup = plan.Cgroup{} }),
	onOptions("systemd's", func(o *plan.Options) { o.Cgroup = plan.Cgroup{Unified: true, Wait: true} }),
	mountedOn("version 2, mounted", unified, func(*specs.Linux) {}),
	mountedOn("version 2, mounted writable", unified, func(*specs.Linux) {}, "rw"),
	mountedOn("version 2, mounted without namespace", unified, without(specs.CgroupNamespace)),
	mountedOn("version 2, of a cgroup that is not known", plan.Cgroup{Unified: true}, without(specs.CgroupNamespace)),
	mountedOn("systemd's, mounted", plan.Cgroup{Unified: true, Own: unified.Own, Wait: true}, func(*specs.Linux) {}),
	mountedOn("systemd's, mounted without namespace", plan.Cgroup{Unified: true, Own: unified.Own, Wait: true},
		without(specs.CgroupNamespace)),
	mountedOn("version 1, mounted", plan.Cgroup{Hierarchies: hierarchies}, func(*specs.Linux) {}),
	mountedOn("version 1, mounted writable", plan.Cgroup{Hierarchies: hierarchies}, func(*specs.Linux) {}, "rw"),
	mountedOn("version 1, the container's own mounted", plan.Cgroup{Hierarchies: ownHierarchies}, func(*specs.Linux) {}),
	mountedOn("version 1, the container's own by systemd mounted", plan.Cgroup{Hierarchies: ownHierarchies, Wait: true},
		func(*specs.Linux) {}),
	mountedOn("version 1, mounted without namespace", plan.Cgroup{Hierarchies: hierarchies}, without(specs.CgroupNamespace)),
}

var processCases = []mutation{
	onProcess("name to look for", func(p *specs.Process) {
		p.Args = []string{"sh", "-c", "exit 1"}
		p.Env = []string{"PATH=/bin:/usr/bin"}
	}),
	onProcess("name and no PATH", func(p *specs.Process) { p.Args = []string{"sh"}; p.Env = nil }),
	onProcess("terminal", func(p *specs.Process) { p.Terminal = true }),
	onProcess("terminal with size and user", func(p *specs.Process) {
		p.Terminal, p.ConsoleSize, p.User.UID = true, &specs.Box{Height: 24, Width: 80}, 1000
	}),
	onProcess("oom score", func(p *specs.Process) { n := 500; p.OOMScoreAdj = &n }),
	onProcess("rlimits", func(p *specs.Process) {
		p.Rlimits = []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Soft: 5, Hard: 6}, {Type: "RLIMIT_CORE", Hard: 1 << 40}}
	}),
	onProcess("scheduler fifo", func(p *specs.Process) {
		p.Scheduler = &specs.Scheduler{Policy: specs.SchedFIFO, Priority: 7, Flags: []specs.LinuxSchedulerFlag{specs.SchedFlagResetOnFork}}
	}),
	onProcess("scheduler deadline", func(p *specs.Process) {
		p.Scheduler = &specs.Scheduler{Policy: specs.SchedDeadline, Runtime: 10000, Deadline: 20000, Period: 30000}
	}),
	onProcess("scheduler nice", func(p *specs.Process) { p.Scheduler = &specs.Scheduler{Policy: specs.SchedBatch, Nice: -5} }),
	onProcess("scheduler unknown", func(p *specs.Process) { p.Scheduler = &specs.Scheduler{Policy: "SCHED_NOPE"} }),
	onProcess("I/O priority", func(p *specs.Process) {
		p.IOPriority = &specs.LinuxIOPriority{Class: specs.IOPRIO_CLASS_BE, Priority: 3}
	}),
	onProcess("I/O priority unknown", func(p *specs.Process) { p.IOPriority = &specs.LinuxIOPriority{Class: "IOPRIO_NOPE"} }),
	onProcess("CPU affinity", func(p *specs.Process) { p.ExecCPUAffinity = &specs.CPUAffinity{Initial: "0-1", Final: "1"} }),
	onProcess("AppArmor", func(p *specs.Process) { p.ApparmorProfile = "boat" }),
	onProcess("SELinux", func(p *specs.Process) { p.SelinuxLabel = "system_u:system_r:container_t:s0" }),
	onProcess("new privileges", func(p *specs.Process) { p.NoNewPrivileges = false }),
	onLinux("personality", func(l *specs.Linux) { l.Personality = &specs.LinuxPersonality{Domain: specs.PerLinux32} }),
	onLinux("memory policy", func(l *specs.Linux) {
		l.MemoryPolicy = &specs.LinuxMemoryPolicy{
			Mode: specs.MpolBind, Nodes: "0-1,3",
			Flags: []specs.MemoryPolicyFlagType{specs.MpolFStaticNodes},
		}
	}),
	onLinux("memory policy without nodes", func(l *specs.Linux) { l.MemoryPolicy = &specs.LinuxMemoryPolicy{Mode: specs.MpolLocal} }),
	onLinux("memory policy unknown", func(l *specs.Linux) { l.MemoryPolicy = &specs.LinuxMemoryPolicy{Mode: "MPOL_NOPE"} }),
	onOptions("further files", func(o *plan.Options) { o.Files = 2 }),
	onOptions("the caller's keyring", func(o *plan.Options) { o.NoNewKeyring = true }),
	onOptions("no limit of files", func(o *plan.Options) { o.NoFile = [2]uint64{} }),
	onSpec("hooks of the host", func(s *specs.Spec) { s.Hooks = &specs.Hooks{CreateRuntime: []specs.Hook{{Path: "/bin/hook"}}} }),
	onSpec("hooks of later", func(s *specs.Spec) {
		h := []specs.Hook{{Path: "/bin/hook"}}
		s.Hooks = &specs.Hooks{StartContainer: h, Poststart: h, Poststop: h}
	}),
}

var capabilityCases = []mutation{
	onProcess("nothing said", func(p *specs.Process) { p.Capabilities = nil }),
	onProcess("none", func(p *specs.Process) { p.Capabilities = &specs.LinuxCapabilities{} }),
	onProcess("all sets", func(p *specs.Process) {
		c := []string{"CAP_NET_RAW", "CAP_CHECKPOINT_RESTORE"}
		p.Capabilities = &specs.LinuxCapabilities{Bounding: c, Effective: c, Permitted: c, Inheritable: c, Ambient: c}
	}),
	onProcess("ambient ones that are not inheritable", func(p *specs.Process) {
		p.Capabilities.Inheritable, p.Capabilities.Ambient = []string{"CAP_KILL"}, []string{"CAP_KILL", "CAP_CHOWN"}
	}),
	onProcess("unknown", func(p *specs.Process) { p.Capabilities.Bounding = []string{"CAP_NOPE"} }),
	onOptions("less than asked for", func(o *plan.Options) { o.Permitted = 1 << unix.CAP_KILL }),
	{"less than asked for, in a user namespace", func(s *specs.Spec, o *plan.Options) { newUser(s.Linux); o.Permitted = 0 }},
}

var filter = &plan.Filter{Program: make([]unix.SockFilter, 7), Flags: unix.SECCOMP_FILTER_FLAG_LOG}

var seccompCases = []mutation{
	onOptions("with no_new_privs", func(o *plan.Options) { o.Seccomp = filter }),
	{"without no_new_privs", func(s *specs.Spec, o *plan.Options) { s.Process.NoNewPrivileges = false; o.Seccomp = filter }},
	onLinux("listener", func(l *specs.Linux) { l.Seccomp = &specs.LinuxSeccomp{ListenerPath: "/run/agent"} }),
}

func sysctl(name string) func(*specs.Linux) {
	return func(l *specs.Linux) { l.Sysctl = map[string]string{name: "1"} }
}

var kernelCases = []mutation{
	onLinux("sysctl net", sysctl("net.ipv4.ip_forward")),
	onLinux("sysctl net with slashes", sysctl("net/ipv4/conf/eth0.1/forwarding")),
	onLinux("sysctl net of an interface with a dot", sysctl("net.ipv4.conf.eth0/1.forwarding")),
	onLinux("sysctl ipc", sysctl("kernel.shmmax")),
	onLinux("sysctl mqueue", sysctl("fs.mqueue.msg_max")),
	onLinux("sysctl uts", sysctl("kernel.domainname")),
	onLinux("sysctl hostname", sysctl("kernel.hostname")),
	onLinux("sysctl of the host", sysctl("kernel.panic")),
	onLinux("sysctl net in the host's", func(l *specs.Linux) { sysctl("net.core.somaxconn")(l); without(specs.NetworkNamespace)(l) }),
	onLinux("sysctls in order", func(l *specs.Linux) { l.Sysctl = map[string]string{"net.b": "2", "net.a": "1", "net.c": "a b"} }),
}

var unsupportedCases = []mutation{
	onSpec("no linux", func(s *specs.Spec) { s.Linux = nil }),
	onSpec("createContainer hook", func(s *specs.Spec) { s.Hooks = &specs.Hooks{CreateContainer: []specs.Hook{{Path: "/bin/hook"}}} }),
}

func fileMode(m os.FileMode) *os.FileMode { return &m }

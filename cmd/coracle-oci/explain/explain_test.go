package explain

import (
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/coracle-project/coracle/runtime/plan"
	"github.com/coracle-project/coracle/runtime/runtimetest"
)

// safe is a container about which there is nothing to warn.
func safe() *specs.Spec {
	s := runtimetest.Spec("one", "/bin/true")
	limit, pids := int64(64<<20), int64(100)
	s.Process.User = specs.User{UID: 1000, GID: 1000}
	s.Process.ApparmorProfile = "boat"
	s.Linux.Seccomp = &specs.LinuxSeccomp{DefaultAction: specs.ActErrno, Syscalls: []specs.LinuxSyscall{
		{Names: []string{"read", "write", "execve", "exit_group"}, Action: specs.ActAllow},
	}}
	s.Linux.Resources.Memory = &specs.LinuxMemory{Limit: &limit}
	s.Linux.Resources.Pids = &specs.LinuxPids{Limit: &pids}
	s.Linux.MaskedPaths = append(s.Linux.MaskedPaths, "/proc/sched_debug")
	return s
}

func explainSpec(t *testing.T, s *specs.Spec) *Document {
	t.Helper()
	bundle := t.TempDir()
	if err := os.Mkdir(filepath.Join(bundle, "rootfs"), 0o755); err != nil {
		t.Fatal(err)
	}
	e, err := Container(Request{ID: "one", Spec: s, Bundle: bundle, CgroupVersion: 1})
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range e.Kernel {
		if k.Name == "also" {
			t.Errorf("an operation of the plan has no place in the explanation, give it one in plan.go: %s", k.Value)
		}
	}
	if err := e.Write(io.Discard); err != nil {
		t.Error(err)
	}
	return e
}

func dropNamespace(kind specs.LinuxNamespaceType) func(*specs.Spec) {
	return func(s *specs.Spec) {
		s.Linux.Namespaces = slices.DeleteFunc(s.Linux.Namespaces, func(n specs.LinuxNamespace) bool { return n.Type == kind })
	}
}

func capability(names ...string) func(*specs.Spec) {
	return func(s *specs.Spec) {
		s.Process.Capabilities.Bounding = append(s.Process.Capabilities.Bounding, names...)
	}
}

func bindOf(source string, options ...string) func(*specs.Spec) {
	return func(s *specs.Spec) {
		s.Mounts = append(s.Mounts, specs.Mount{Destination: "/x", Type: "bind", Source: source, Options: append(options, "rbind")})
	}
}

func allowed(rule specs.LinuxDeviceCgroup) func(*specs.Spec) {
	return func(s *specs.Spec) {
		rule.Allow, rule.Access = true, "rwm"
		s.Linux.Resources.Devices = append(s.Linux.Resources.Devices, rule)
	}
}

func userNamespace(s *specs.Spec, host uint32) {
	s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: specs.UserNamespace})
	s.Linux.UIDMappings = []specs.LinuxIDMapping{{HostID: host, Size: 1000}}
	s.Linux.GIDMappings = []specs.LinuxIDMapping{{HostID: 100000, Size: 1000}}
}

// TestDangers spoils a safe container in one way each, and wants just that warning.
func TestDangers(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "docker.sock")
	if err := os.WriteFile(socket, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	one, three, eight := int64(1), int64(3), int64(8)
	cases := map[string]struct {
		spoil                 func(*specs.Spec)
		level, field, problem string // no level: no warning
	}{
		"nothing":                    {spoil: func(*specs.Spec) {}},
		"CAP_SYS_ADMIN":              {capability("CAP_SYS_ADMIN"), high, "process.capabilities", "CAP_SYS_ADMIN"},
		"CAP_SYS_PTRACE":             {capability("CAP_SYS_PTRACE"), high, "process.capabilities", "CAP_SYS_PTRACE"},
		"CAP_SYS_MODULE":             {capability("CAP_SYS_MODULE"), high, "process.capabilities", "CAP_SYS_MODULE"},
		"CAP_DAC_READ_SEARCH":        {capability("CAP_DAC_READ_SEARCH"), high, "process.capabilities", "CAP_DAC_READ_SEARCH"},
		"unknown capability":         {capability("CAP_NOPE"), low, "process.capabilities", `"CAP_NOPE" is unknown`},
		"CAP_NET_ADMIN, own network": {spoil: capability("CAP_NET_ADMIN")},
		"CAP_SYS_ADMIN in a user namespace": {func(s *specs.Spec) {
			capability("CAP_SYS_ADMIN")(s)
			userNamespace(s, 100000)
		}, low, "process.capabilities", "within its user namespace"},
		"privileged": {func(s *specs.Spec) {
			s.Process.Capabilities.Bounding = plan.CapSet(1<<41 - 1).Names()
		}, high, "process.capabilities", "the container is privileged"},
		"host's pid":     {dropNamespace(specs.PIDNamespace), high, "linux.namespaces", "host's pid namespace"},
		"host's network": {dropNamespace(specs.NetworkNamespace), medium, "linux.namespaces", "host's network namespace"},
		"host's ipc":     {dropNamespace(specs.IPCNamespace), medium, "linux.namespaces", "host's ipc namespace"},
		"host's cgroup":  {dropNamespace(specs.CgroupNamespace), low, "linux.namespaces", "host's cgroup namespace"},
		"host's uts": {func(s *specs.Spec) {
			s.Hostname = ""
			dropNamespace(specs.UTSNamespace)(s)
		}, low, "linux.namespaces", "host's uts namespace"},
		"network of init": {func(s *specs.Spec) {
			s.Linux.Namespaces[1].Path = "/proc/1/ns/net"
		}, medium, "linux.namespaces", "(/proc/1/ns/net)"},
		"network of a pod":            {spoil: func(s *specs.Spec) { s.Linux.Namespaces[1].Path = "/proc/self/ns/net" }},
		"mounts of the host":          {dropNamespace(specs.MountNamespace), high, "linux.namespaces", "host's mount namespace"},
		"root":                        {func(s *specs.Spec) { s.Process.User.UID = 0 }, medium, "process.user.uid", "root of the host"},
		"root in a user namespace":    {spoil: func(s *specs.Spec) { s.Process.User.UID = 0; userNamespace(s, 100000) }},
		"the host's root mapped":      {func(s *specs.Spec) { userNamespace(s, 0) }, medium, "linux.uidMappings", "id 0 of the host"},
		"the host's root file system": {bindOf("/"), high, "mounts /x", "/ of the host is bound, writable"},
		"the host's root, read-only":  {bindOf("/", "ro"), high, "mounts /x", "/ of the host is bound, read-only"},
		"/etc":                        {bindOf("/etc/"), high, "mounts /x", "/etc of the host is bound, writable"},
		"/etc, read-only":             {bindOf("/etc", "ro"), medium, "mounts /x", "read-only"},
		"a file of /etc":              {spoil: bindOf("/etc/hostname", "ro")},
		"a socket":                    {bindOf(socket), high, "mounts /x", "socket of a container runtime"},
		"/proc/sys":                   {bindOf("/proc/sys"), high, "mounts /x", "/proc/sys of the host"},
		"cgroups of version 1, bound": {bindOf("/sys/fs/cgroup/memory"), high, "mounts /x", "the cgroups are writable"},
		"a source that is not there":  {bindOf("/no/such/place"), high, "mounts", "/no/such/place cannot be used"},
		"a mount that spreads":        {bindOf("/mnt", "rshared"), medium, "mounts /x", "show up on the host"},
		"a root that spreads": {func(s *specs.Spec) {
			s.Linux.RootfsPropagation = "shared"
		}, medium, "linux.rootfsPropagation", "shared"},
		"writable sysfs": {func(s *specs.Spec) { s.Mounts[5].Options = nil }, high, "mounts /sys", "sysfs is writable"},
		"cgroups, read-only": {spoil: func(s *specs.Spec) {
			s.Mounts = append(s.Mounts, specs.Mount{Destination: "/sys/fs/cgroup", Type: "cgroup", Options: []string{"ro"}})
		}},
		"root /": {func(s *specs.Spec) { s.Root.Path = "/" }, high, "root.path", "the host's"},
		"writable /proc/sys": {func(s *specs.Spec) {
			s.Linux.ReadonlyPaths = []string{"/proc/sysrq-trigger"}
		}, high, "linux.readonlyPaths", "/proc/sys is writable"},
		"nothing masked": {func(s *specs.Spec) { s.Linux.MaskedPaths = nil }, medium, "linux.maskedPaths", "/proc/kcore, /proc/keys"},
		"new privileges": {func(s *specs.Spec) { s.Process.NoNewPrivileges = false }, medium, "process.noNewPrivileges", "off"},
		"no LSM":         {func(s *specs.Spec) { s.Process.ApparmorProfile = "" }, low, "process.apparmorProfile", "neither"},
		"unconfined": {func(s *specs.Spec) {
			s.Process.ApparmorProfile = "unconfined"
		}, medium, "process.apparmorProfile", "unconfined"},
		"unconfined by SELinux": {func(s *specs.Spec) {
			s.Process.SelinuxLabel = "system_u:system_r:spc_t:s0"
		}, medium, "process.selinuxLabel", "not confined"},
		"spared from OOM": {func(s *specs.Spec) { n := -999; s.Process.OOMScoreAdj = &n }, low, "process.oomScoreAdj", "-999"},
		"no filter":       {func(s *specs.Spec) { s.Linux.Seccomp = nil }, medium, "linux.seccomp", "no filter"},
		"a filter of nothing": {func(s *specs.Spec) {
			s.Linux.Seccomp = &specs.LinuxSeccomp{DefaultAction: specs.ActLog}
		}, medium, "linux.seccomp", "denies nothing"},
		"no memory limit": {func(s *specs.Spec) { s.Linux.Resources.Memory = nil }, low, "linux.resources.memory.limit", "none"},
		"a unified memory limit": {spoil: func(s *specs.Spec) {
			s.Linux.Resources.Memory = nil
			s.Linux.Resources.Unified = map[string]string{"memory.max": "1000000"}
		}},
		"no limit of processes": {func(s *specs.Spec) { s.Linux.Resources.Pids = nil }, low, "linux.resources.pids.limit", "none"},
		"all devices":           {allowed(specs.LinuxDeviceCgroup{}), high, "linux.resources.devices[1]", "all devices (allow a *:* rwm)"},
		"a disk": {
			allowed(specs.LinuxDeviceCgroup{Type: "b", Major: &eight, Minor: &one}), high, "linux.resources.devices[1]",
			"a disk",
		},
		"physical memory": {
			allowed(specs.LinuxDeviceCgroup{Type: "c", Major: &one, Minor: &one}), high, "linux.resources.devices[1]",
			"physical memory",
		},
		"/dev/null":           {spoil: allowed(specs.LinuxDeviceCgroup{Type: "c", Major: &one, Minor: &three})},
		"no rule that denies": {func(s *specs.Spec) { s.Linux.Resources.Devices = nil }, medium, "linux.resources.devices", "nothing denies"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			s := safe()
			c.spoil(s)
			got := explainSpec(t, s).Warnings
			if c.level == "" {
				if len(got) > 0 {
					t.Errorf("warns %+v", got)
				}
				return
			}
			if len(got) != 1 || got[0].Level != c.level || got[0].Field != c.field || !strings.Contains(got[0].Problem, c.problem) {
				t.Errorf("warns %+v, want %s %s: %s", got, c.level, c.field, c.problem)
			}
			for _, w := range got {
				if w.Why == "" || w.Instead == "" {
					t.Errorf("does not say why, or what to do: %+v", w)
				}
			}
		})
	}
}

// TestExplainWhatPlansLack explains containers that another engine makes.
func TestExplainWhatPlansLack(t *testing.T) {
	s := safe()
	s.Linux.IntelRdt = &specs.LinuxIntelRdt{ClosID: "x"}
	s.Linux.MountLabel = "system_u:object_r:container_file_t:s0"
	s.Linux.Namespaces = slices.DeleteFunc(s.Linux.Namespaces, func(n specs.LinuxNamespace) bool { return n.Type == specs.MountNamespace })
	s.Linux.MaskedPaths, s.Linux.ReadonlyPaths = nil, nil
	e := explainSpec(t, s)
	if e.Engine != "libcontainer" || !strings.Contains(e.Because, "not supported by the plan engine: a container without a mount namespace") {
		t.Errorf("engine %q because %q", e.Engine, e.Because)
	}
	for _, want := range []Setting{{"label of mounts", s.Linux.MountLabel}, {"Intel RDT", "x"}} {
		if !slices.Contains(e.Kernel, want) {
			t.Errorf("kernel has %+v and not %+v", e.Kernel, want)
		}
	}
	if len(e.Mounts) != len(s.Mounts) || len(e.Process.Args) != 1 {
		t.Errorf("mounts %+v, process %+v", e.Mounts, e.Process)
	}
}

// TestExplainAll explains a container that has something of everything.
func TestExplainAll(t *testing.T) {
	s := safe()
	userNamespace(s, 100000)
	s.Process.Terminal, s.Process.ConsoleSize = true, &specs.Box{Height: 24, Width: 80}
	s.Process.Scheduler = &specs.Scheduler{Policy: specs.SchedBatch, Nice: 5}
	s.Process.IOPriority = &specs.LinuxIOPriority{Class: specs.IOPRIO_CLASS_BE, Priority: 3}
	s.Process.SelinuxLabel = "system_u:system_r:container_t:s0"
	s.Process.Rlimits = []specs.POSIXRlimit{{Type: "RLIMIT_CORE"}}
	s.Domainname = "sea"
	s.Linux.Personality = &specs.LinuxPersonality{Domain: specs.PerLinux32}
	s.Linux.Sysctl = map[string]string{"net.ipv4.ip_forward": "1"}
	s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: specs.TimeNamespace})
	s.Linux.TimeOffsets = map[string]specs.LinuxTimeOffset{"boottime": {Secs: -7}}
	s.Mounts = append(s.Mounts, specs.Mount{Destination: "/x", Type: "bind", Source: "/mnt", Options: []string{"rbind", "ro", "ridmap"}})
	s.Hooks = &specs.Hooks{Poststop: []specs.Hook{{Path: "/bin/true"}}}
	e := explainSpec(t, s)
	for _, want := range []Setting{
		{"host name", "boat"}, {"domain name", "sea"}, {"net.ipv4.ip_forward", "1"}, {"clock boottime", "-7.000000000 s"},
	} {
		if !slices.Contains(e.Kernel, want) {
			t.Errorf("kernel has %+v and not %+v", e.Kernel, want)
		}
	}
	for _, want := range []Setting{
		{"AppArmor profile", "boat"},
		{"SELinux label", s.Process.SelinuxLabel},
		{"I/O priority", "IOPRIO_CLASS_BE 3"},
		{"personality", "LINUX32"},
	} {
		if !slices.Contains(e.Process.Settings, want) {
			t.Errorf("process has %+v and not %+v", e.Process.Settings, want)
		}
	}
	if m := e.Mounts[len(e.Mounts)-1]; m.Source != "/mnt" || !m.has("ro") || !m.has("ridmap") {
		t.Errorf("mount %+v", m)
	}
	if e.Engine != "coracle" || !e.Process.Terminal || len(e.Hooks) != 1 || e.of(specs.TimeNamespace).Of != "new" {
		t.Errorf("got %+v", e)
	}
}

// TestLimits compares which files a configuration's resources go to.
func TestLimits(t *testing.T) {
	var s specs.Spec
	limit, swap, quota, pids := int64(100), int64(150), int64(5000), int64(-1)
	shares, period, burst, weight, handles := uint64(1024), uint64(10000), uint64(7), uint16(500), uint32(3)
	s.Linux = &specs.Linux{Resources: &specs.LinuxResources{
		Memory:         &specs.LinuxMemory{Limit: &limit, Swap: &swap, Reservation: &limit},
		CPU:            &specs.LinuxCPU{Shares: &shares, Quota: &quota, Period: &period, Burst: &burst, Cpus: "0-1"},
		Pids:           &specs.LinuxPids{Limit: &pids},
		BlockIO:        &specs.LinuxBlockIO{Weight: &weight, ThrottleReadBpsDevice: []specs.LinuxThrottleDevice{{Rate: 9}}},
		HugepageLimits: []specs.LinuxHugepageLimit{{Pagesize: "2MB", Limit: 8}},
		Rdma:           map[string]specs.LinuxRdma{"mlx5_1": {HcaHandles: &handles}},
	}}
	for version, want := range map[int]string{
		1: "memory.limit_in_bytes=100 memory.soft_limit_in_bytes=100 memory.memsw.limit_in_bytes=150 cpu.shares=1024 cpu.cfs_period_us=10000 " +
			"cpu.cfs_quota_us=5000 cpu.cfs_burst_us=7 cpuset.cpus=0-1 pids.max=max blkio.weight=500 blkio.throttle.read_bps_device=0:0 9 " +
			"hugetlb.2MB.limit_in_bytes=8 rdma.max=mlx5_1 hca_handle=3",
		2: "memory.max=100 memory.low=100 memory.swap.max=50 cpu.weight=100 cpu.max=5000 10000 cpu.max.burst=7 cpuset.cpus=0-1 pids.max=max " +
			"io.weight=4950 io.max=0:0 rbps=9 hugetlb.2MB.max=8 rdma.max=mlx5_1 hca_handle=3",
	} {
		var got []string
		for _, l := range newCgroup(&s, usualCgroup(version, "/one")).Limits {
			got = append(got, l.Name+"="+l.Value)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("version %d writes\n%s, want\n%s", version, strings.Join(got, " "), want)
		}
	}
}

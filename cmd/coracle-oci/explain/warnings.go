package explain

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/coracle-project/coracle/runtime/plan"
)

// Levels of warnings: a high one is a way to the host by itself, a medium one takes away a
// wall that another mistake would meet, a low one lets the container disturb others.
const (
	high   = "high"
	medium = "medium"
	low    = "low"
)

type Warning struct {
	Level string `json:"level"`
	// Field of config.json, what is wrong there, why, and what to do.
	Field   string `json:"field"`
	Problem string `json:"problem"`
	Why     string `json:"why"`
	Instead string `json:"instead"`
}

func (e *Document) warn(level, field, problem, why, instead string) {
	e.Warnings = append(e.Warnings, Warning{level, field, problem, why, instead})
}

// dangers looks for what lets a container's program reach the host. Worst first.
func (e *Document) dangers(spec *specs.Spec) {
	e.capabilityDangers()
	for _, c := range plan.UnknownCapabilities(spec.Process.Capabilities) {
		e.warn(low, "process.capabilities", fmt.Sprintf("%q is unknown", c), "it is ignored",
			"write it as capabilities(7) does, such as CAP_CHOWN")
	}
	e.namespaceDangers()
	e.mountDangers()
	e.procDangers()
	e.processDangers(spec)
	e.seccompDangers(spec)
	e.resourceDangers(spec)
	rank := map[string]int{high: 0, medium: 1, low: 2}
	slices.SortStableFunc(e.Warnings, func(a, b Warning) int { return rank[a.Level] - rank[b.Level] })
}

var dangerousCapabilities = map[string]string{
	"CAP_SYS_ADMIN":       "it mounts file systems, makes devices visible and does a hundred things more: nearly root of the host",
	"CAP_SYS_MODULE":      "it loads code into the kernel",
	"CAP_SYS_RAWIO":       "it reads and writes physical memory and disks",
	"CAP_SYS_PTRACE":      "it reads and changes other processes, and the runtime's own while that enters the container",
	"CAP_DAC_READ_SEARCH": "it opens any file of the host's file systems by handle (open_by_handle_at)",
	"CAP_SYS_BOOT":        "it restarts the machine or loads another kernel",
	"CAP_BPF":             "it loads programs into the kernel",
	"CAP_PERFMON":         "it watches the kernel and all processes",
	"CAP_MAC_ADMIN":       "it changes the rules of the security module",
	"CAP_MAC_OVERRIDE":    "it ignores the rules of the security module",
	"CAP_SYS_TIME":        "it sets the clock of the whole machine",
	"CAP_SYSLOG":          "it reads the kernel's log with its addresses",
}

// privileged is from how many capabilities on one speaks of a privileged container: a usual
// one has 14.
const privileged = 30

func (e *Document) capabilityDangers() {
	level, where := high, ""
	if e.of(specs.UserNamespace).Of == "new" {
		level, where = low, " (within its user namespace only)"
	}
	bounding := e.Process.Caps["bounding"]
	if len(bounding) >= privileged {
		e.warn(level, "process.capabilities", fmt.Sprintf("the container is privileged: it has %d capabilities%s", len(bounding), where),
			"with all of them root in the container is root of the host", "list those that the program needs; most need none")
		return
	}
	for _, c := range bounding {
		if why, ok := dangerousCapabilities[c]; ok {
			e.warn(level, "process.capabilities", c+where, why, "leave it out")
		}
	}
	if e.of(specs.NetworkNamespace).hosts() && slices.Contains(bounding, "CAP_NET_ADMIN") {
		e.warn(high, "process.capabilities", "CAP_NET_ADMIN in the host's network", "it changes the host's addresses, routes and firewall",
			"leave it out, or give the container a network namespace")
	}
}

func (e *Document) namespaceDangers() {
	for _, n := range []struct {
		kind       specs.LinuxNamespaceType
		level, why string
	}{
		{specs.MountNamespace, high, "mounts of the container are mounts of the host"},
		{specs.PIDNamespace, high, "the program sees and signals all processes, and reads their /proc/PID/environ and /proc/PID/root"},
		{specs.NetworkNamespace, medium, "the program reaches services that listen on the host's loopback, abstract sockets among them"},
		{specs.IPCNamespace, medium, "the program reaches shared memory and queues of the host's processes"},
		{specs.CgroupNamespace, low, "the program sees the names of the host's cgroups"},
		{specs.UTSNamespace, low, "the program sees the host's name, and with CAP_SYS_ADMIN sets it"},
	} {
		if has := e.of(n.kind); has.hosts() {
			what := "the container has the host's " + string(n.kind) + " namespace"
			if has.Path != "" {
				what += " (" + has.Path + ")"
			}
			e.warn(n.level, "linux.namespaces", what, n.why, fmt.Sprintf(`add {"type": %q} to linux.namespaces`, n.kind))
		}
	}
	if e.of(specs.UserNamespace).Of == "host" && e.Process.UID == 0 {
		e.warn(medium, "process.user.uid", "the program is root of the host, without a user namespace",
			"whatever gets out of the container is root there", "set another uid, or add a user namespace with mappings")
	}
	if m := e.Mappings; m != nil {
		for _, list := range []struct {
			field string
			ids   []plan.Mapping
		}{{"linux.uidMappings", m.UIDs}, {"linux.gidMappings", m.GIDs}} {
			if slices.ContainsFunc(list.ids, func(m plan.Mapping) bool { return m.Outside == 0 }) {
				e.warn(medium, list.field, "id 0 of the host is mapped into the container", "whatever gets out of the container is root there",
					"map ids that no one else has, such as 100000 and on")
			}
		}
	}
}

// hostPaths are those that must not be bound, writable or at all, by how much they give away.
var hostPaths = []struct {
	path     string
	readonly string // the level if it is bound read-only
	why      string
}{
	{"/", high, "the program has all files of the host"},
	{"/etc", medium, "the program has the host's passwords, keys and services"},
	{"/boot", low, "the program has the host's kernel and boot loader"},
	{"/root", medium, "the program has root's keys and shell profiles"},
	{"/home", medium, "the program has the users' keys and shell profiles"},
	{"/usr", low, "the program has the host's programs"},
	{"/var", medium, "the program has the state of the host's services"},
	{"/var/lib/kubelet", medium, "the program has the secrets of all pods"},
	{"/var/lib/docker", medium, "the program has all containers' files"},
	{"/var/lib/containerd", medium, "the program has all containers' files"},
	{"/var/lib/coracle", medium, "the program has all containers' files"},
	{"/run", high, "the program has the sockets of the host's services; read-only does not keep it from connecting"},
	{"/var/run", high, "the program has the sockets of the host's services; read-only does not keep it from connecting"},
	{"/proc", high, "the program has the host's processes and kernel settings"},
	{"/sys", medium, "the program has the host's devices and kernel settings"},
	{"/dev", high, "the program has the host's device nodes"},
}

// sockets are names of those by which a runtime takes orders.
var sockets = []string{
	"docker.sock", "containerd.sock", "containerd.sock.ttrpc", "crio.sock", "podman.sock", "coracled.sock",
	"coracle.sock", "buildkitd.sock",
}

func (e *Document) mountDangers() {
	for _, m := range e.Mounts {
		field := "mounts " + m.Target
		readonly := m.has("ro") || m.has("rro")
		if m.Type == "bind" {
			e.bindDangers(m, field, readonly)
		}
		if (m.Type == "cgroup" || m.Type == "cgroup2" || strings.HasPrefix(m.Source, "/sys/fs/cgroup")) && !readonly &&
			e.of(specs.UserNamespace).Of != "new" {
			level, why := medium, "root in the container changes its own limits"
			if m.Type == "cgroup" || m.Type == "bind" && e.Cgroup.Version == 1 {
				level, why = high, "release_agent of cgroup version 1 runs a program on the host (CVE-2022-0492), and root changes its own limits"
			}
			e.warn(level, field, "the cgroups are writable", why, `add the option "ro"`)
		}
		if m.Type == "sysfs" && !readonly {
			e.warn(high, field, "sysfs is writable",
				"root in the container changes the host's devices and kernel, and has programs run by uevent_helper", `add the option "ro"`)
		}
		if m.has("shared") || m.has("rshared") {
			e.warn(medium, field, "mounts made in it show up on the host",
				"propagation goes both ways, so that a mount in the container is one of the host",
				`set "rslave" if the container is to see later mounts, else "rprivate"`)
		}
	}
	if p := e.Root.Propagation; p == "shared" || p == "rshared" {
		e.warn(medium, "linux.rootfsPropagation", "it is "+p,
			"what the container mounts in a volume whose options do not say otherwise shows up on the host", `set "rslave", or leave it out`)
	}
	if e.Root.Path == "/" {
		e.warn(high, "root.path", "the root file system is the host's", "the program has all files of the host", "give a directory of its own")
	}
}

func (e *Document) bindDangers(m Mount, field string, readonly bool) {
	src := path.Clean(m.Source)
	if name := path.Base(src); slices.Contains(sockets, name) {
		e.warn(high, field, "it is the socket of a container runtime ("+src+")",
			"who can connect makes a privileged container; read-only does not keep it from that",
			"leave it out, or give the program a proxy that allows single requests")
		return
	}
	for _, h := range hostPaths {
		if src != h.path {
			continue
		}
		level, what := high, src+" of the host is bound, writable"
		instead := "bind the one directory or file that is needed, and read-only"
		if readonly {
			level, what = h.readonly, src+" of the host is bound, read-only"
			instead = "bind the one directory or file that is needed"
		}
		e.warn(level, field, what, h.why, instead)
	}
	if strings.HasPrefix(src, "/proc/sys") && !readonly {
		e.warn(high, field, src+" of the host is bound, writable", "kernel settings such as core_pattern run programs on the host",
			"use linux.sysctl for the container's own settings")
	}
}

// usualMasks are files of proc and sys that show or change the host.
var usualMasks = []string{"/proc/kcore", "/proc/keys", "/proc/timer_list", "/proc/sched_debug", "/sys/firmware"}

func (e *Document) procDangers() {
	var proc, sys bool
	for _, m := range e.Mounts {
		proc = proc || m.Type == "proc" && m.Target == "/proc" && !m.has("ro")
		sys = sys || m.Target == "/sys"
	}
	covered := func(list []string, p string) bool {
		return slices.ContainsFunc(list, func(have string) bool {
			have = path.Clean(have)
			return p == have || strings.HasPrefix(p, have+"/")
		})
	}
	closed := slices.Concat(e.Masked, e.Readonly)
	user := e.of(specs.UserNamespace).Of == "new"
	for _, p := range []string{"/proc/sys", "/proc/sysrq-trigger"} {
		if proc && !user && !covered(closed, p) {
			e.warn(high, "linux.readonlyPaths", p+" is writable",
				"root in the container sets kernel settings of the host (kernel.core_pattern runs a program there), or restarts it",
				"add it to linux.readonlyPaths")
		}
	}
	var open []string
	for _, p := range usualMasks {
		if (proc && strings.HasPrefix(p, "/proc/") || sys && strings.HasPrefix(p, "/sys/")) && !covered(e.Masked, p) {
			open = append(open, p)
		}
	}
	if len(open) > 0 {
		e.warn(medium, "linux.maskedPaths", strings.Join(open, ", ")+" can be read", "they show the host's memory, keys and hardware",
			"add them to linux.maskedPaths")
	}
}

func (e *Document) processDangers(spec *specs.Spec) {
	if !e.Process.NoNewPrivileges {
		e.warn(medium, "process.noNewPrivileges", "it is off",
			"programs with the setuid bit or file capabilities in the image raise the program's rights", "set it to true")
	}
	p := spec.Process
	switch profile := p.ApparmorProfile; {
	case profile == "unconfined":
		e.warn(medium, "process.apparmorProfile", "it is unconfined", "no security module holds what gets past the other walls",
			"name a profile that is loaded on the host")
	case profile == "" && p.SelinuxLabel == "":
		e.warn(low, "process.apparmorProfile", "neither an AppArmor profile nor an SELinux label is set",
			"no security module holds what gets past the other walls",
			"set process.apparmorProfile or process.selinuxLabel, whichever the host has")
	}
	if strings.Contains(p.SelinuxLabel, ":spc_t") || strings.Contains(p.SelinuxLabel, ":unconfined_t") {
		e.warn(medium, "process.selinuxLabel", p.SelinuxLabel+" is not confined", "no security module holds what gets past the other walls",
			"use a type such as container_t")
	}
	if p.OOMScoreAdj != nil && *p.OOMScoreAdj < -500 {
		e.warn(low, "process.oomScoreAdj", fmt.Sprintf("it is %d", *p.OOMScoreAdj),
			"if memory runs out, services of the host are killed before this container", "set 0 or more")
	}
}

func (e *Document) seccompDangers(spec *specs.Spec) {
	const why = "all system calls of the kernel are open to the program, those with a history of holes among them"
	if e.Seccomp == nil {
		e.warn(medium, "linux.seccomp", "there is no filter", why, "use a profile such as Docker's default one")
		return
	}
	for _, a := range e.Seccomp.Archs {
		if a.Denied == 0 && a.Conditional == 0 {
			e.warn(medium, "linux.seccomp", "the filter denies nothing on "+string(a.Arch), why,
				"let defaultAction be SCMP_ACT_ERRNO, and list what the program needs")
		}
	}
}

// memoryDevices by which physical memory is written: mem, kmem, port.
var memoryDevices = map[int64]bool{1: true, 2: true, 4: true}

func (e *Document) resourceDangers(spec *specs.Spec) {
	r := &specs.LinuxResources{}
	if spec.Linux != nil && spec.Linux.Resources != nil {
		r = spec.Linux.Resources
	}
	const noLimit = "a program that grows without end takes down what else runs on the host"
	if r.Memory == nil || r.Memory.Limit == nil || *r.Memory.Limit <= 0 {
		if r.Unified["memory.max"] == "" {
			e.warn(low, "linux.resources.memory.limit", "there is none", noLimit, "set it to some bytes")
		}
	}
	if r.Pids == nil || r.Pids.Limit == nil || *r.Pids.Limit <= 0 {
		if r.Unified["pids.max"] == "" {
			e.warn(low, "linux.resources.pids.limit", "there is none", "a fork bomb takes all process ids of the host", "set it to some hundreds")
		}
	}
	e.deviceRuleDangers(r.Devices)
}

func (e *Document) deviceRuleDangers(rules []specs.LinuxDeviceCgroup) {
	for i, d := range rules {
		if !d.Allow {
			continue
		}
		field := fmt.Sprintf("linux.resources.devices[%d]", i)
		opens := strings.ContainsAny(d.Access, "rw")
		switch {
		case ofAllDevices(d) && opens:
			e.warn(high, field, "it allows all devices ("+deviceRule(d)+")",
				"with CAP_MKNOD the program makes any disk's device node and reads or writes it", "allow the devices that are needed by number")
		case d.Type == "b" && opens:
			e.warn(high, field, "it allows a disk ("+deviceRule(d)+")", "what is on it can be read or written past all permissions",
				"bind a directory of it instead")
		case d.Type == "c" && d.Major != nil && *d.Major == 1 && (d.Minor == nil || memoryDevices[*d.Minor]) && opens:
			e.warn(high, field, "it allows physical memory ("+deviceRule(d)+")", "the program reads and writes the kernel", "leave it out")
		}
	}
	if !slices.ContainsFunc(rules, func(d specs.LinuxDeviceCgroup) bool { return !d.Allow && ofAllDevices(d) }) {
		e.warn(medium, "linux.resources.devices", "nothing denies devices that are not listed",
			"with CAP_MKNOD the program makes device nodes of the host's disks and opens them",
			`begin the list with {"allow": false, "access": "rwm"}`)
	}
}

// ofAllDevices says whether a rule is of devices of all types and numbers.
func ofAllDevices(d specs.LinuxDeviceCgroup) bool {
	any := func(n *int64) bool { return n == nil || *n < 0 }
	return (d.Type == "" || d.Type == "a") && any(d.Major) && any(d.Minor)
}

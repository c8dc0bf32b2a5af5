package explain

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/runtime/plan"
	"github.com/coracle-project/coracle/runtime/seccomp"
)

// fromPlan takes from the plan all that it has.
func (e *Document) fromPlan(p *plan.Plan) {
	e.Mappings = p.Mappings
	made, joined := p.Namespaces, map[plan.Namespaces]string{}
	for _, op := range p.Ops {
		e.Steps = append(e.Steps, op.String())
		switch op := op.(type) {
		case plan.Unshare:
			made |= op.Types
		case plan.Setns:
			joined[op.Types] = op.Path
		}
		if !e.mounting(p, op) && !e.setting(op) && !internal(op) {
			// Of a kind that is newer than this program's tables.
			e.Kernel = append(e.Kernel, Setting{"also", op.String()})
		}
	}
	for _, ns := range allNamespaces {
		n := Namespace{Type: string(ns.kind), Of: "host"}
		if made&ns.flag != 0 {
			n.Of = "new"
		} else if at, ok := joined[ns.flag]; ok {
			n.Of, n.Path = "joined", at
		}
		e.Namespaces = append(e.Namespaces, n)
	}
}

// internal are operations that say nothing of the container that is not told elsewhere.
func internal(op plan.Op) bool {
	switch op.(type) {
	case plan.Unshare, plan.Setns, plan.Wait, plan.Fork, plan.Keep, plan.Joined, plan.JoinCgroups, plan.BecomeRoot, plan.SetCaps, plan.AllCPUs,
		plan.MemoryPolicy,
		plan.LoopbackUp, plan.HostView, plan.MakeDir, plan.MakeFile, plan.Stdio, plan.Session, plan.KeepFds, plan.FindProgram, plan.EndBySignals,
		plan.Gate, plan.Seccomp:
		return true
	}
	return false
}

// mounting takes what an operation does to the container's files. false if nothing.
func (e *Document) mounting(p *plan.Plan, op plan.Op) bool {
	switch op := op.(type) {
	case plan.Enter:
		t := p.Opens[op.Root].Tree
		e.Root.Path, e.Root.Propagation = t.Path, plan.MountFlags(t.Propagation)
	case plan.Finish:
		e.Root.Readonly = op.ReadonlyRoot
	case plan.Leave:
		if op.Propagation != 0 {
			e.Root.Propagation = plan.MountFlags(op.Propagation)
		}
	case plan.Mount:
		m := Mount{Target: op.Target, Type: op.Type, Source: op.Source, Options: []string{}}
		m.add(plan.MountFlags(op.Flags), plan.MountFlags(op.Propagation))
		if op.ReadonlyLater {
			m.add("ro")
		}
		m.add(op.Data)
		e.Mounts = append(e.Mounts, m)
	case plan.Attach:
		t := p.Opens[op.Tree].Tree
		if t.Device != nil {
			e.Devices = append(e.Devices, Device{op.Target, fmt.Sprintf("the host's, %d:%d", t.Device[0], t.Device[1])})
			return true
		}
		e.Mounts = append(e.Mounts, bound(op, t))
	case plan.Rebind:
		e.Mounts = append(e.Mounts, bound(plan.Attach{Target: op.Target}, op.Tree))
	case plan.Device:
		kind := map[uint32]string{unix.S_IFCHR: "c", unix.S_IFBLK: "b", unix.S_IFIFO: "p"}[op.Type]
		what := fmt.Sprintf("%s %d:%d mode %04o", kind, op.Major, op.Minor, op.Mode)
		if op.UID != 0 || op.GID != 0 {
			what += fmt.Sprintf(" owner %d:%d", op.UID, op.GID)
		}
		e.Devices = append(e.Devices, Device{op.Path, what})
	case plan.Symlink:
		e.Links = append(e.Links, op)
	case plan.Mask:
		e.Masked = append(e.Masked, op.Path)
	case plan.Readonly:
		e.Readonly = append(e.Readonly, op.Path)
	default:
		return false
	}
	return true
}

// add adds options that are separated by commas.
func (m *Mount) add(options ...string) {
	for _, o := range options {
		if o != "" {
			m.Options = append(m.Options, strings.Split(o, ",")...)
		}
	}
}

func bound(op plan.Attach, t *plan.Tree) Mount {
	m := Mount{Target: op.Target, Type: "bind", Source: t.Path}
	m.add("bind")
	if t.Recursive {
		m.Options[0] = "rbind"
	}
	m.add(t.Set.String())
	for _, o := range strings.Split(t.SetAll.String(), ",") {
		if o != "" {
			m.add("r" + o)
		}
	}
	m.add(plan.MountFlags(t.Propagation))
	switch {
	case t.IDMap != nil && t.IDMapAll:
		m.add("ridmap")
	case t.IDMap != nil:
		m.add("idmap")
	}
	return m
}

// setting takes what an operation does to the kernel's settings and the process. false if
// nothing.
func (e *Document) setting(op plan.Op) bool {
	p := &e.Process
	set := func(name, value string) { p.Settings = append(p.Settings, Setting{name, value}) }
	switch op := op.(type) {
	case plan.Hostname:
		name := "host name"
		if op.Domain {
			name = "domain name"
		}
		e.Kernel = append(e.Kernel, Setting{name, op.Name})
	case plan.WriteProc:
		if name, ok := strings.CutPrefix(op.Path, "sys/"); ok {
			e.Kernel = append(e.Kernel, Setting{strings.ReplaceAll(name, "/", "."), op.Value})
		} else {
			set(procSettings(op))
		}
	case plan.Rlimit:
		p.Limits = append(p.Limits, Setting{op.Name, limit(op.Soft) + " of " + limit(op.Hard)})
	case plan.Scheduler:
		set("scheduler", fmt.Sprintf("%s, nice %d, priority %d", op.Policy, op.Nice, op.Priority))
	case plan.IOPriority:
		set("I/O priority", fmt.Sprintf("%s %d", op.Class, op.Priority))
	case plan.Personality:
		set("personality", op.Domain)
	case plan.Keyring:
		set("session keyring", "new, "+op.Name)
	case plan.Umask:
		p.Umask = fmt.Sprintf("%04o", op.Mask)
	case plan.Chdir:
		p.Cwd = op.Path
	case plan.Terminal:
		p.Terminal = true
	case plan.NoNewPrivs:
		p.NoNewPrivileges = true
	case plan.User:
		p.UID, p.GID, p.Groups = op.UID, op.GID, op.Groups
		p.Caps = map[string][]string{}
		for _, s := range []struct {
			name string
			set  plan.CapSet
		}{
			{"bounding", op.Caps.Bounding},
			{"permitted", op.Caps.Permitted},
			{"effective", op.Caps.Effective},
			{"inheritable", op.Caps.Inheritable},
			{"ambient", op.Caps.Ambient},
		} {
			p.Caps[s.name] = append([]string{}, s.set.Names()...)
		}
		p.Dropped = append([]string{}, (^op.Caps.Bounding).Names()...)
	case plan.Affinity:
		set("CPUs", op.CPUs)
	case plan.Execute:
		p.Args, p.Env = op.Args, op.Env
	default:
		return false
	}
	return true
}

// procSettings says what a file of /proc/self is written for.
func procSettings(op plan.WriteProc) (name, value string) {
	switch path.Base(path.Dir(op.Path)) {
	case "apparmor":
		return "AppArmor profile", strings.TrimPrefix(op.Value, "exec ")
	case "attr":
		return "SELinux label", op.Value
	}
	return path.Base(op.Path), op.Value
}

func limit(n uint64) string {
	if n == unix.RLIM_INFINITY {
		return "unlimited"
	}
	return fmt.Sprint(n)
}

// fromSpec takes what no plan has: what happens outside of the container.
func (e *Document) fromSpec(spec *specs.Spec, o *plan.Options) {
	if h := spec.Hooks; h != nil {
		for _, list := range []struct {
			when  string
			hooks []specs.Hook
		}{
			//lint:ignore SA1019 prestart is deprecated but still part of the spec
			{"prestart", h.Prestart},
			{"createRuntime", h.CreateRuntime},
			{"createContainer", h.CreateContainer},
			{"startContainer", h.StartContainer},
			{"poststart", h.Poststart},
			{"poststop", h.Poststop},
		} {
			for _, hook := range list.hooks {
				e.Hooks = append(e.Hooks, Hook{list.when, hook.Path, hook.Args})
			}
		}
	}
	e.Cgroup = newCgroup(spec, o.Cgroup)
	if l := spec.Linux; l != nil {
		e.fromLinux(l)
	}
}

// fromLinux takes what belongs to the container and not to its plan.
func (e *Document) fromLinux(l *specs.Linux) {
	set := func(name, value string) { e.Kernel = append(e.Kernel, Setting{name, value}) }
	for _, clock := range slices.Sorted(maps.Keys(l.TimeOffsets)) {
		set("clock "+clock, fmt.Sprintf("%+d.%09d s", l.TimeOffsets[clock].Secs, l.TimeOffsets[clock].Nanosecs))
	}
	for _, name := range slices.Sorted(maps.Keys(l.NetDevices)) {
		set("network device "+name, "moved in, "+cmp.Or(l.NetDevices[name].Name, name))
	}
	if l.MountLabel != "" {
		set("label of mounts", l.MountLabel)
	}
	if m := l.MemoryPolicy; m != nil {
		set("memory policy", strings.TrimSpace(fmt.Sprintf("%s %s", m.Mode, m.Nodes)))
	}
	if r := l.IntelRdt; r != nil {
		set("Intel RDT", strings.TrimSpace(strings.Join([]string{r.ClosID, r.L3CacheSchema, r.MemBwSchema}, " ")))
	}
}

func (e *Document) seccomp(spec *specs.Spec, f *plan.Filter) error {
	if f == nil {
		return nil
	}
	p := spec.Linux.Seccomp
	s := &Seccomp{Default: string(p.DefaultAction), Instructions: len(f.Program), Listener: p.ListenerPath}
	for _, flag := range p.Flags {
		s.Flags = append(s.Flags, string(flag))
	}
	var err error
	s.Archs, err = seccomp.Summarize(f.Program, p.Architectures)
	e.Seccomp = s
	return err
}

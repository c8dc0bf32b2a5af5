package runtimetest

import (
	"fmt"
	"os"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/runtime"
)

// nsFiles are the names of namespaces below /proc/PID/ns.
var nsFiles = map[specs.LinuxNamespaceType]string{
	specs.PIDNamespace: "pid", specs.NetworkNamespace: "net", specs.IPCNamespace: "ipc", specs.UTSNamespace: "uts",
	specs.UserNamespace: "user", specs.CgroupNamespace: "cgroup", specs.TimeNamespace: "time",
}

// joining makes a container share namespaces with a process.
func joining(spec *specs.Spec, pid int, types ...specs.LinuxNamespaceType) *specs.Spec {
	for _, t := range types {
		found := false
		for i := range spec.Linux.Namespaces {
			if ns := &spec.Linux.Namespaces[i]; ns.Type == t {
				ns.Path, found = fmt.Sprintf("/proc/%d/ns/%s", pid, nsFiles[t]), true
			}
		}
		if !found {
			spec.Linux.Namespaces = append(spec.Linux.Namespaces,
				specs.LinuxNamespace{Type: t, Path: fmt.Sprintf("/proc/%d/ns/%s", pid, nsFiles[t])})
		}
		if t == specs.UTSNamespace {
			spec.Hostname = ""
		}
	}
	return spec
}

func (r *rig) sameNamespace(a, b int, t specs.LinuxNamespaceType) bool {
	r.Helper()
	var st [2]unix.Stat_t
	for i, pid := range []int{a, b} {
		r.must(unix.Stat(fmt.Sprintf("/proc/%d/ns/%s", pid, nsFiles[t]), &st[i]))
	}
	return st[0].Ino == st[1].Ino
}

var joinTests = map[string]func(*rig){
	"each namespace can be joined alone": func(r *rig) {
		first, pid := r.running()
		for _, t := range []specs.LinuxNamespaceType{
			specs.PIDNamespace, specs.NetworkNamespace, specs.IPCNamespace, specs.UTSNamespace,
			specs.CgroupNamespace,
		} {
			c := r.create(joining(r.spec("read x; exit 7"), pid, t), runtime.Stdio{})
			second := c.Pid()
			for other := range nsFiles {
				if other == specs.UserNamespace || other == specs.TimeNamespace {
					continue
				}
				if got := r.sameNamespace(pid, second, other); got != (other == t) {
					r.Errorf("joining %s: is the %s namespace the same? %v", t, other, got)
				}
			}
			r.must(c.Start(r.Context()))
			if got := r.wait(second); got != 7 {
				r.Errorf("joining %s: exit status %d, want 7", t, got)
			}
			r.must(c.Delete(r.Context(), runtime.DeleteOptions{}))
		}
		r.end(first, pid)
	},

	"exec in a container that shares a pid namespace": func(r *rig) {
		first, pid := r.running()
		c := r.create(joining(Spec(r.id(), "/bin/sleep", "1000"), pid, specs.PIDNamespace), runtime.Stdio{})
		second := c.Pid()
		r.must(c.Start(r.Context()))
		r.execSays(c, process("grep -c . /proc/1/cmdline; hostname"), "1\nboat")
		if pids, err := c.Pids(r.Context()); err != nil || len(pids) != 1 || pids[0] != second {
			r.Errorf("pids are %v, %v, want %d alone", pids, err, second)
		}
		r.end(c, second)
		r.status(first, specs.StateRunning)
		r.end(first, pid)
	},

	"a namespace of another kind is an error": func(r *rig) {
		spec := r.spec("true")
		spec.Linux.Namespaces[2].Path = "/proc/self/ns/net" // for ipc
		c, err := r.engine.Create(r.Context(), idOf(spec), spec, runtime.CreateOptions{Bundle: r.bundle})
		if err == nil {
			r.Error("create succeeded")
			r.end(c, c.Pid())
		}
	},

	"namespaces that are not named are the caller's": func(r *rig) {
		spec := r.spec("echo ready; read go")
		spec.Hostname = ""
		spec.Linux.Namespaces = []specs.LinuxNamespace{{Type: specs.MountNamespace}, {Type: specs.PIDNamespace}}
		spec.Mounts[5] = bind("/sys", "/sys", "ro")
		c := r.create(spec, runtime.Stdio{})
		pid := c.Pid()
		for t := range nsFiles {
			if got := r.sameNamespace(os.Getpid(), pid, t); got != (t != specs.PIDNamespace) {
				r.Errorf("is the %s namespace the caller's? %v", t, got)
			}
		}
		r.must(c.Start(r.Context()))
		r.end(c, pid)
	},

	"a user namespace can be joined, and others that belong to it": func(r *rig) {
		first := r.create(r.inUserNamespace(Spec(r.id(), "/bin/sleep", "1000")), runtime.Stdio{})
		pid := first.Pid()
		r.must(first.Start(r.Context()))
		spec := joining(Spec(r.id(), "/bin/sh", "-c",
			"id -u; cut -c1-40 /proc/self/uid_map | tr -s ' '; hostname; cat /proc/self/oom_score_adj; touch /tmp/mine && stat -c %u /tmp/mine; "+
				"stat -c '%t:%T' /dev/null; sleep 1000"),
			pid, specs.UserNamespace, specs.NetworkNamespace, specs.IPCNamespace, specs.UTSNamespace)
		spec.Process.OOMScoreAdj = ptr(250)
		out := r.output()
		c := r.create(spec, runtime.Stdio{Stdout: out.write})
		second := c.Pid()
		r.must(c.Start(r.Context()))
		var got []string
		for range 6 {
			got = append(got, out.line())
		}
		if text := strings.Join(got, "\n"); text != "0\n 0 100000 65536\nboat\n250\n0\n1:3" {
			r.Errorf("got %q", text)
		}
		if r.sameNamespace(pid, second, specs.PIDNamespace) || !r.sameNamespace(pid, second, specs.UserNamespace) ||
			!r.sameNamespace(pid, second, specs.NetworkNamespace) {
			r.Error("the namespaces are not those asked for")
		}
		r.execSays(c, process("id -u; hostname; cut -c1-40 /proc/self/uid_map | tr -s ' '"), "0\nboat\n 0 100000 65536")
		r.end(c, second)
		r.end(first, pid)
	},

	"a user namespace and a pid namespace can be joined": func(r *rig) {
		out := r.output()
		first := r.create(r.inUserNamespace(Spec(r.id(), "/bin/sh", "-c", "echo ready; sleep 1000; :")), runtime.Stdio{Stdout: out.write})
		pid := first.Pid()
		r.must(first.Start(r.Context()))
		if got := out.line(); got != "ready" {
			r.Errorf("got %q", got)
		}
		r.says(joining(r.spec("cat /proc/1/comm; id -u"), pid, specs.UserNamespace, specs.PIDNamespace), "sh\n0")
		r.end(first, pid)
	},

	"a time namespace has its offsets, also for further processes; it can be joined": func(r *rig) {
		// 100,000 days: more than any machine is up.
		const script = `cut -d. -f1 /proc/uptime | grep -c '^8640......$'`
		spec := Spec(r.id(), "/bin/sh", "-c", script+"; exec sleep 1000")
		spec.Linux.Namespaces = append(spec.Linux.Namespaces, specs.LinuxNamespace{Type: specs.TimeNamespace})
		spec.Linux.TimeOffsets = map[string]specs.LinuxTimeOffset{"boottime": {Secs: 8_640_000_000 - 8_000_000_000 +
			8_000_000_000 - 8_553_600_000}, "monotonic": {Secs: 1000, Nanosecs: 5}}
		spec.Linux.TimeOffsets["boottime"] = specs.LinuxTimeOffset{Secs: 8_640_000_00}
		out := r.output()
		c := r.create(spec, runtime.Stdio{Stdout: out.write})
		pid := c.Pid()
		r.must(c.Start(r.Context()))
		const far = `awk '{ print ($1 > 864000000) }' /proc/uptime`
		_ = out.line()
		r.execSays(c, process(far), "1")
		r.says(joining(r.spec(far), pid, specs.TimeNamespace), "1")
		r.end(c, pid)
	},
}

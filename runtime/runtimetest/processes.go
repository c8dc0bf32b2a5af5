package runtimetest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/runtime"
)

var memoryNodes = differs("memory nodes", "a linux.memoryPolicy with nodes that the machine has not",
	"the error is the kernel's", "it names the field")

const capsOf = `grep -E '^Cap' /proc/self/status | cut -c8- | tr -d '\t' | tr '\n' ' '`

var processTests = map[string]func(*rig){
	"a program that cannot be executed after all says why": func(r *rig) {
		for name, tc := range map[string]struct{ content, why string }{
			"/bin/lost":  {"#!/no/such/interpreter\n", "no such file or directory"},
			"/bin/other": {"\x7fELF", "exec format error"},
		} {
			r.must(os.WriteFile(r.inRoot(name), []byte(tc.content), 0o755))
			out, status := r.run(Spec(r.id(), name))
			if want := "exec " + name + ": " + tc.why; strings.TrimSpace(out) != want || status != 255 {
				r.Errorf("got %q and %d, want %q and 255", out, status, want)
			}
		}
	},

	"capabilities: each set": func(r *rig) {
		spec := r.spec(capsOf)
		spec.Process.Capabilities = &specs.LinuxCapabilities{
			Bounding: []string{"CAP_CHOWN", "CAP_KILL", "CAP_SETUID"}, Permitted: []string{"CAP_CHOWN", "CAP_KILL"}, Effective: []string{"CAP_KILL"},
			Inheritable: []string{"CAP_KILL"}, Ambient: []string{"CAP_KILL"},
		}
		spec.Process.User = specs.User{UID: 7, GID: 7}
		r.says(spec, "0000000000000020 0000000000000020 0000000000000020 00000000000000a1 0000000000000020")
		spec = r.spec(capsOf)
		spec.Process.Capabilities = nil
		r.says(spec, either(r, noCapabilities, "0000000000000000 "+strings.Repeat(r.ownCapabilities()+" ", 3)+"0000000000000000",
			strings.TrimSpace(strings.Repeat("0000000000000000 ", 5))))
	},

	"ambient capabilities are among the inheritable ones": func(r *rig) {
		spec := r.spec("grep CapAmb /proc/self/status | tr -d '\\t'")
		spec.Process.Capabilities.Inheritable, spec.Process.Capabilities.Ambient = []string{"CAP_KILL"}, []string{"CAP_KILL", "CAP_CHOWN"}
		r.says(spec, "CapAmb:0000000000000020")
	},

	// CVE-2022-29162.
	"nothing is inheritable unless it is said": func(r *rig) {
		c, pid := r.running()
		out := r.output()
		child, err := c.Exec(r.Context(), process("grep CapInh /proc/self/status | tr -d '\\t'"),
			runtime.ExecOptions{Stdio: runtime.Stdio{Stdout: out.write}})
		r.must(err)
		r.wait(child)
		if got := out.text(); got != "CapInh:0000000000000000" {
			r.Errorf("exec: %s", got)
		}
		r.end(c, pid)
		r.says(r.spec("grep CapInh /proc/self/status | tr -d '\\t'"), "CapInh:0000000000000000")
	},

	// config.md#linux-process: it must be a warning.
	"an unknown capability is left out": func(r *rig) {
		spec := r.spec("true")
		spec.Process.Capabilities.Bounding = append(spec.Process.Capabilities.Bounding, "CAP_SAIL")
		r.says(spec, "")
	},

	"a scheduler that forks undo is that of a further process": func(r *rig) {
		c, pid := r.running()
		p := process("sleep 1000")
		p.Args = []string{"/bin/sleep", "1000"}
		p.Scheduler = &specs.Scheduler{Policy: specs.SchedBatch, Nice: 5, Flags: []specs.LinuxSchedulerFlag{specs.SchedFlagResetOnFork}}
		child, err := c.Exec(r.Context(), p, runtime.ExecOptions{})
		r.must(err)
		attr, err := unix.SchedGetAttr(child, 0)
		r.must(err)
		if attr.Policy != unix.SCHED_BATCH || attr.Nice != 5 || attr.Flags&unix.SCHED_FLAG_RESET_ON_FORK == 0 {
			r.Errorf("the process has %+v", attr)
		}
		r.must(unix.Kill(child, unix.SIGKILL))
		r.wait(child)
		r.end(c, pid)
	},

	"a memory policy is that of all processes": func(r *rig) {
		const policy = "head -n1 /proc/self/numa_maps | cut -d' ' -f2"
		spec := Spec(r.id(), "/bin/sh", "-c", policy+"; exec sleep 1000")
		spec.Linux.MemoryPolicy = &specs.LinuxMemoryPolicy{
			Mode: specs.MpolBind, Nodes: "0",
			Flags: []specs.MemoryPolicyFlagType{specs.MpolFStaticNodes},
		}
		out := r.output()
		c := r.create(spec, runtime.Stdio{Stdout: out.write, Stderr: out.write})
		pid := c.Pid()
		r.must(c.Start(r.Context()))
		if got := out.line(); got != "bind=static:0" {
			r.Errorf("init has policy %q", got)
		}
		r.execSays(c, process(policy), "bind=static:0")
		r.end(c, pid)
		spec = r.spec("true")
		spec.Linux.MemoryPolicy = &specs.LinuxMemoryPolicy{Mode: specs.MpolBind, Nodes: "1000"}
		r.refused(spec, either(r, memoryNodes, "invalid argument", "linux.resources.cpu.mems"))
	},

	"HOME is the user's by the container's passwd": func(r *rig) {
		r.file("rootfs/etc/passwd", "root:x:0:0::/root:/bin/sh\njack:x:7:7::/home/jack:/bin/sh\nbroken\n")
		for _, c := range []struct {
			uid  uint32
			env  string
			want string
		}{{7, "", "/home/jack"}, {0, "", "/root"}, {8, "", "/"}, {7, "HOME=/mine", "/mine"}, {7, "HOME=", "/home/jack"}} {
			spec := r.spec("echo $HOME")
			spec.Process.User.UID = c.uid
			spec.Process.Env = []string{"PATH=/bin"}
			if c.env != "" {
				spec.Process.Env = append(spec.Process.Env, c.env)
			}
			r.says(spec, c.want)
			spec.Process.Args = []string{"/bin/sleep", "1000"}
			spec.Linux.CgroupsPath = CgroupParent + "/" + r.id()
			ctr := r.create(spec, runtime.Stdio{})
			pid := ctr.Pid()
			r.must(ctr.Start(r.Context()))
			p := process("echo $HOME")
			p.User.UID, p.Env = c.uid, spec.Process.Env
			r.execSays(ctr, p, c.want)
			r.end(ctr, pid)
		}
	},

	"of two values of a variable the last one counts": func(r *rig) {
		spec := r.spec("env | grep -c ^X=; echo $X")
		spec.Process.Env = append(spec.Process.Env, "X=1", "X=2")
		r.says(spec, "1\n2")
	},

	"the working directory is made; root may enter what the user may not": func(r *rig) {
		r.must(os.Mkdir(r.inRoot("closed"), 0o700))
		spec := r.spec("pwd")
		spec.Process.Cwd = "/not/yet/there"
		r.says(spec, "/not/yet/there")
		spec = r.spec("readlink /proc/self/cwd")
		spec.Process.Cwd, spec.Process.User = "/closed", specs.User{UID: 7, GID: 7}
		r.says(spec, "/closed")
		r.must(os.WriteFile(r.inRoot("file"), nil, 0o644))
		spec = r.spec("true")
		spec.Process.Cwd = "/file"
		r.refused(spec, "ot a directory")
		spec = r.spec("true")
		spec.Process.Cwd = "/closed"
		r.must(os.Chown(r.inRoot("closed"), 5, 5))
		spec.Process.Capabilities, spec.Process.User = nil, specs.User{UID: 7, GID: 7}
		r.says(spec, "")
	},

	// CVE-2024-21626.
	"the working directory is never one of the host's": func(r *rig) {
		dir, err := os.Open("/")
		r.must(err)
		defer dir.Close()
		for fd := 3; fd < 12; fd++ {
			spec := r.spec("pwd")
			spec.Process.Cwd = fmt.Sprintf("/proc/self/fd/%d", fd)
			var files []*os.File
			if fd == 3 {
				files = append(files, dir)
			}
			c, err := r.engine.Create(r.Context(), idOf(spec), spec, runtime.CreateOptions{Bundle: r.bundle, Stdio: runtime.Stdio{Files: files}})
			if err == nil {
				r.Errorf("%s: create succeeded", spec.Process.Cwd)
				r.end(c, c.Pid())
			}
		}
		c, pid := r.running()
		for fd := 3; fd < 12; fd++ {
			p := process("pwd")
			p.Cwd = fmt.Sprintf("/proc/self/fd/%d", fd)
			if child, err := c.Exec(r.Context(), p, runtime.ExecOptions{}); err == nil {
				r.Errorf("exec in %s succeeded", p.Cwd)
				r.wait(child)
			}
		}
		r.end(c, pid)
	},

	"standard streams belong to the user": func(r *rig) {
		spec := r.spec("echo out > /dev/stdout; echo err > /dev/stderr; echo x > /dev/null")
		spec.Process.User, spec.Process.Capabilities = specs.User{UID: 7, GID: 7}, nil
		r.says(spec, "out\nerr")
		c, pid := r.running()
		p := process("echo out > /dev/stdout; echo x > /dev/null")
		p.User, p.Capabilities = specs.User{UID: 7, GID: 7}, nil
		r.execSays(c, p, "out")
		r.end(c, pid)
	},

	"limits that are not said are the caller's": func(r *rig) {
		want, _ := r.run(r.spec("ulimit -Sn; ulimit -Hn"))
		var own unix.Rlimit
		r.must(unix.Getrlimit(unix.RLIMIT_NOFILE, &own))
		if !strings.HasSuffix(want, fmt.Sprint(own.Max)) {
			r.Errorf("open files are limited to %q, the caller's hard limit is %d", want, own.Max)
		}
	},

	"further processes are bound to CPUs": func(r *rig) {
		const cpus = "grep Cpus_allowed_list /proc/self/status | cut -f2"
		spec := Spec(r.id(), "/bin/sleep", "1000")
		spec.Process.ExecCPUAffinity = &specs.CPUAffinity{Initial: "0-1", Final: "0"}
		c := r.create(spec, runtime.Stdio{})
		pid := c.Pid()
		r.must(c.Start(r.Context()))
		if !r.libcontainer { // coracle-oci's business there
			r.execSays(c, process(cpus), "0")
		}
		p := process(cpus)
		p.ExecCPUAffinity = &specs.CPUAffinity{Final: "1"}
		r.execSays(c, p, "1")
		p.ExecCPUAffinity = &specs.CPUAffinity{Final: "1-x"}
		_, err := c.Exec(r.Context(), p, runtime.ExecOptions{})
		r.wantErr(err, runtime.ErrInvalidSpec)
		r.end(c, pid)
	},

	"few descriptors are allowed and many given": func(r *rig) {
		spec := r.spec("ulimit -n")
		spec.Process.Rlimits = []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Soft: either(r, fewDescriptors, uint64(20), 3), Hard: 20}}
		spec.Process.Args = []string{"/bin/sh", "-c", "ulimit -n"}
		r.says(spec, fmt.Sprint(spec.Process.Rlimits[0].Soft))
		c, pid := r.running()
		p := process("ulimit -n")
		p.Rlimits = spec.Process.Rlimits
		r.execSays(c, p, fmt.Sprint(spec.Process.Rlimits[0].Soft))
		r.end(c, pid)
	},

	"scheduling, I/O priority, personality, umask, session": func(r *rig) {
		spec := r.spec("cut -d' ' -f19 /proc/self/stat; ionice -p $$; uname -m; umask; cut -d' ' -f6 /proc/self/stat")
		spec.Process.Scheduler = &specs.Scheduler{Policy: specs.SchedBatch, Nice: 7}
		spec.Process.IOPriority = &specs.LinuxIOPriority{Class: specs.IOPRIO_CLASS_BE, Priority: 6}
		spec.Linux.Personality = &specs.LinuxPersonality{Domain: specs.PerLinux32}
		got, _ := r.run(spec)
		machine := map[string]string{"amd64": "i686", "arm64": "armv8l"}[goarch]
		if want := "7\nbest-effort: prio 6\n" + machine + "\n0022\n1"; got != want {
			r.Errorf("got %q, want %q", got, want)
		}
	},

	"host and domain name, sysctls of the namespaces": func(r *rig) {
		spec := r.spec(
			"hostname; cat /proc/sys/kernel/domainname /proc/sys/kernel/shmmni /proc/sys/fs/mqueue/msg_max /proc/sys/net/ipv4/conf/all/forwarding",
		)
		spec.Domainname = "sea"
		spec.Linux.Sysctl = map[string]string{"kernel.shmmni": "123", "fs.mqueue.msg_max": "11", "net/ipv4/conf/all/forwarding": "1"}
		r.says(spec, "boat\nsea\n123\n11\n1")
	},

	"sysctls of the host are refused": func(r *rig) {
		for _, name := range []string{
			"kernel.panic", "vm.swappiness", "fs.file-max", "kernel.hostname", "kernel/core_pattern",
			"net.ipv4.no_such", "net.//.kernel.core_pattern", "fs.mqueue.//.//.kernel.core_pattern",
		} {
			spec := r.spec("true")
			spec.Linux.Sysctl = map[string]string{name: "1"}
			r.refused(spec, "sysctl")
		}
		spec := r.spec("true")
		spec.Linux.Sysctl = map[string]string{"net.ipv4.ip_forward": "1"}
		spec.Linux.Namespaces = append(spec.Linux.Namespaces[:1:1], spec.Linux.Namespaces[2:]...)
		r.refused(spec, "net")
	},

	"the session keyring is new": func(r *rig) {
		before, err := unix.KeyctlGetKeyringID(unix.KEY_SPEC_SESSION_KEYRING, false)
		if err != nil && !errors.Is(err, unix.ENOSYS) {
			r.must(err)
		}
		r.run(r.spec("true"))
		after, _ := unix.KeyctlGetKeyringID(unix.KEY_SPEC_SESSION_KEYRING, false)
		if before != after {
			r.Errorf("this process's session keyring was %x and is %x", before, after)
		}
	},

	"startContainer hooks run in the container, before its program, and may end it": func(r *rig) {
		spec := r.spec("cat /tmp/log")
		spec.Hooks = &specs.Hooks{StartContainer: []specs.Hook{{
			Path: "/bin/sh", Args: []string{
				"sh", "-c",
				`grep -o '"status":"[a-z]*"' >> /tmp/log; echo $A $(hostname) $(ls / | grep -c bin) >> /tmp/log`,
			}, Env: []string{"A=b", "PATH=/bin"},
		}}}
		r.says(spec, "\"status\":\"created\"\nb boat 1")
		spec = r.spec("true")
		spec.Hooks = &specs.Hooks{StartContainer: []specs.Hook{{Path: "/bin/false"}}}
		c := r.create(spec, runtime.Stdio{})
		pid := c.Pid()
		err := c.Start(r.Context())
		if either(r, startHookFails, err != nil, err == nil) {
			r.Errorf("Start: %v", err)
		}
		r.end(c, pid)
	},

	"createRuntime hooks come after the mounts": func(r *rig) {
		log := filepath.Join(r.bundle, "log")
		spec := r.spec("true")
		spec.Hooks = &specs.Hooks{CreateRuntime: []specs.Hook{{Path: "/bin/sh", Env: []string{"PATH=/bin:/usr/bin"}, Args: []string{
			"sh", "-c",
			`grep -c ' ` + r.inRoot("dev/mqueue") + ` .*mqueue' /proc/$(grep -o '"pid":[0-9]*' | cut -d: -f2)/mountinfo > ` + log,
		}}}}
		r.run(spec)
		data, err := os.ReadFile(log)
		r.must(err)
		if n := strings.TrimSpace(string(data)); n == "0" {
			r.Error("the container's mounts are not there")
		}
	},

	"poststart hooks come after the program has been executed": func(r *rig) {
		log := filepath.Join(r.bundle, "log")
		spec := Spec(r.id(), "/bin/sleep", "1000")
		spec.Hooks = &specs.Hooks{Poststart: []specs.Hook{{Path: "/bin/sh", Env: []string{"PATH=/bin:/usr/bin"}, Args: []string{
			"sh", "-c",
			`cat /proc/$(grep -o '"pid":[0-9]*' | cut -d: -f2)/comm > ` + log,
		}}}}
		c := r.create(spec, runtime.Stdio{})
		pid := c.Pid()
		r.must(c.Start(r.Context()))
		data, err := os.ReadFile(log)
		r.must(err)
		if string(data) != "sleep\n" {
			r.Errorf("init is %q", data)
		}
		r.end(c, pid)
	},

	"hooks of the host see its namespaces and the state": func(r *rig) {
		log := filepath.Join(r.bundle, "log")
		spec := r.spec("true")
		note := func(kind string) []specs.Hook {
			return []specs.Hook{{Path: "/bin/sh", Env: []string{"PATH=/bin:/usr/bin"}, Args: []string{
				"sh", "-c",
				`set -- $(readlink /proc/self/ns/uts /proc/self/ns/mnt) $(grep -o '"status":"[a-z]*"'); echo ` + kind + ` $* >> ` + log,
			}}}
		}
		spec.Hooks = &specs.Hooks{
			//lint:ignore SA1019 prestart is deprecated but still part of the spec
			Prestart: note("prestart"), CreateRuntime: note("createRuntime"), Poststart: note("poststart"),
			Poststop: note("poststop"),
		}
		r.run(spec)
		data, err := os.ReadFile(log)
		r.must(err)
		uts, err := os.Readlink("/proc/self/ns/uts")
		r.must(err)
		mnt, err := os.Readlink("/proc/self/ns/mnt")
		r.must(err)
		var want strings.Builder
		for _, l := range [][2]string{
			{"prestart", "creating"},
			{"createRuntime", "creating"},
			{"poststart", "running"},
			{"poststop", "stopped"},
		} {
			fmt.Fprintf(&want, "%s %s %s \"status\":%q\n", l[0], uts, mnt, l[1])
		}
		got := string(data)
		if r.libcontainer {
			got = strings.ReplaceAll(got, `prestart `+uts+" "+mnt+` "status":"created"`, `prestart `+uts+" "+mnt+` "status":"creating"`)
		}
		if got != want.String() {
			r.Errorf("got\n%swant\n%s", got, want.String())
		}
	},

	"createContainer hooks find the host's files, in the container's namespaces": func(r *rig) {
		log := filepath.Join(r.bundle, "log")
		spec := r.spec("hostname; cat /vol/note")
		spec.Mounts = append(spec.Mounts, specs.Mount{Destination: "/vol", Type: "tmpfs", Source: "tmpfs"})
		spec.Hooks = &specs.Hooks{CreateContainer: []specs.Hook{{Path: "/bin/sh", Env: []string{"PATH=/bin:/usr/bin"}, Args: []string{
			"sh", "-c",
			`readlink /proc/self/ns/net /proc/self/ns/uts > ` + log + `; grep -o '"status":"[a-z]*"' >> ` + log + `; echo from the hook > ` +
				r.inRoot("vol/note"),
		}}}}
		out := r.output()
		c := r.create(spec, runtime.Stdio{Stdout: out.write})
		pid := c.Pid()
		data, err := os.ReadFile(log)
		r.must(err)
		net, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", pid))
		r.must(err)
		uts, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/uts", pid))
		r.must(err)
		if want := net + "\n" + uts + "\n\"status\":\"creating\"\n"; string(data) != want {
			r.Errorf("the hook says %q, want %q", data, want)
		}
		r.must(c.Start(r.Context()))
		r.wait(pid)
		if got := out.text(); got != "boat\nfrom the hook" {
			r.Errorf("got %q", got)
		}
		r.must(c.Delete(r.Context(), runtime.DeleteOptions{}))
	},

	// As runc's own test of libraries that hooks bring (hooks_so.bats) expects: the hook starts in
	// the root.
	"what a createContainer hook mounts in the root is there for the program": func(r *rig) {
		note := filepath.Join(r.bundle, "note")
		r.must(os.WriteFile(note, []byte("from the hook\n"), 0o644))
		spec := r.spec("cat /by-path; cat /here; pwd")
		spec.Hooks = &specs.Hooks{CreateContainer: []specs.Hook{{Path: "/bin/sh", Env: []string{"PATH=/bin:/usr/bin"}, Args: []string{
			"sh", "-ec",
			`for at in ` + r.inRoot("by-path") + ` ./here; do : > $at; mount --bind ` + note + ` $at; done`,
		}}}}
		out := r.output()
		c := r.create(spec, runtime.Stdio{Stdout: out.write, Stderr: out.write})
		pid := c.Pid()
		r.must(c.Start(r.Context()))
		r.wait(pid)
		if got, want := out.text(), "from the hook\nfrom the hook\n/"; got != want {
			r.Errorf("got %q, want %q", got, want)
		}
		r.must(c.Delete(r.Context(), runtime.DeleteOptions{}))
		if data, err := os.ReadFile(r.inRoot("here")); err != nil || len(data) > 0 {
			r.Errorf("the mount has come to the host: %q, %v", data, err)
		}
	},

	"a hook that hangs while a container is made is killed at its timeout": func(r *rig) {
		for _, set := range []func(*specs.Hooks, []specs.Hook){
			func(h *specs.Hooks, l []specs.Hook) { h.CreateRuntime = l },
			func(h *specs.Hooks, l []specs.Hook) { h.CreateContainer = l },
		} {
			spec := r.spec("true")
			spec.Hooks = &specs.Hooks{}
			set(spec.Hooks, []specs.Hook{{Path: "/bin/sleep", Args: []string{"sleep", "1000"}, Timeout: ptr(1)}})
			c, err := r.engine.Create(r.Context(), idOf(spec), spec, runtime.CreateOptions{Bundle: r.bundle})
			if err == nil {
				r.Error("create succeeded")
				r.end(c, c.Pid())
			}
		}
	},
}

var (
	noCapabilities = differs("no capabilities", "a process without process.capabilities", "all that the caller has", "none")
	fewDescriptors = differs("few descriptors", "an RLIMIT_NOFILE below what the runtime itself needs", "an error", "the program gets it")
)

var startHookFails = differs("failing startContainer hook", "a startContainer hook that fails",
	"Start succeeds and init ends", "Start fails")

// ownCapabilities are this process's, as proc writes them.
func (r *rig) ownCapabilities() string {
	r.Helper()
	data, err := os.ReadFile("/proc/self/status")
	r.must(err)
	_, rest, _ := strings.Cut(string(data), "CapPrm:\t")
	return rest[:16]
}

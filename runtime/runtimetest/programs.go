package runtimetest

import (
	"os"
	"runtime"

	"github.com/opencontainers/runtime-spec/specs-go"

	coracle "github.com/coracle-project/coracle/runtime"
)

const goarch = runtime.GOARCH

// everyCallButThose is a filter that refuses these system calls.
func everyCallButThose(names ...string) *specs.LinuxSeccomp {
	return &specs.LinuxSeccomp{
		DefaultAction: specs.ActAllow,
		Architectures: []specs.Arch{specs.ArchX86_64, specs.ArchAARCH64},
		Syscalls:      []specs.LinuxSyscall{{Names: names, Action: specs.ActErrno, ErrnoRet: ptr(uint(77))}},
	}
}

var programTests = map[string]func(*rig){
	"programs that cannot be executed, in runc's words": func(r *rig) {
		r.must(os.WriteFile(r.inRoot("bin/plain"), []byte("text"), 0o644))
		r.must(os.Mkdir(r.inRoot("bin/folder"), 0o755))
		r.must(os.MkdirAll(r.inRoot("early/sh"), 0o755))
		r.must(os.WriteFile(r.inRoot("early/echo"), []byte("text"), 0o644))
		c, pid := r.running()
		for _, t := range []struct{ program, want string }{
			{"/no/such", `exec: "/no/such": stat /no/such: no such file or directory`},
			{"no-such", `exec: "no-such": executable file not found in $PATH`},
			{"plain", `exec: "plain": executable file not found in $PATH`},
			{"folder", `exec: "folder": executable file not found in $PATH`},
			{"/bin/plain", `exec: "/bin/plain": permission denied`},
			{"/bin/folder", `exec: "/bin/folder": is a directory`},
			{"/bin/plain/x", `exec: "/bin/plain/x": stat /bin/plain/x: not a directory`},
			{"./no", `exec: "./no": stat ./no: no such file or directory`},
		} {
			r.refused(Spec(r.id(), t.program), t.want)
			p := process("")
			p.Args = []string{t.program}
			if child, err := c.Exec(r.Context(), p, coracle.ExecOptions{}); err == nil {
				r.Errorf("exec of %s succeeded", t.program)
				r.wait(child)
			} else {
				r.hasText(err, t.want)
			}
		}
		r.end(c, pid)
		// Directories and what cannot be executed are passed by.
		spec := Spec(r.id(), "sh", "-c", "echo found")
		spec.Process.Env = []string{"PATH=/none:/early:/bin"}
		r.says(spec, "found")
		spec = Spec(r.id(), "echo", "found")
		spec.Process.Env = []string{"PATH=/early:/bin"}
		r.says(spec, "found")
	},

	"a filter needs no call of its own to be allowed": func(r *rig) {
		r.must(os.Chmod(r.inRoot(""), 0o755))
		own := []string{
			"clone", "clone3", "fork", "vfork", "sendto", "sendmsg", "setgroups", "setresuid", "setresgid", "setuid", "setgid", "capset", "prctl",
			"openat2", "faccessat", "setsid", "chdir", "fchdir", "umask", "close_range", "dup3", "read", "getcwd",
		}
		if r.libcontainer {
			// A Go program needs these, and without no_new_privs also those that change users.
			own = []string{"setsid", "umask", "openat2", "sendmsg"}
		}
		for _, noNewPrivs := range []bool{true, false} {
			spec := Spec(r.id(), "/bin/echo", "ran")
			spec.Process.NoNewPrivileges = noNewPrivs
			spec.Process.User = specs.User{UID: 7, GID: 7}
			spec.Linux.Seccomp = everyCallButThose(own...)
			r.says(spec, "ran")
			spec = Spec(r.id(), "/bin/sleep", "1000")
			spec.Process.NoNewPrivileges = noNewPrivs
			spec.Linux.Seccomp = everyCallButThose(own...)
			c := r.create(spec, coracle.Stdio{})
			pid := c.Pid()
			r.must(c.Start(r.Context()))
			p := process("")
			p.Args, p.NoNewPrivileges = []string{"/bin/echo", "ran"}, noNewPrivs
			p.User = specs.User{UID: 7, GID: 7}
			r.execSays(c, p, "ran")
			r.end(c, pid)
		}
	},

	"a filter without no_new_privs leaves no capability behind": func(r *rig) {
		for _, uid := range []uint32{0, 7} {
			for _, calls := range [][]string{{"acct"}, {"sendto", "clone", "clone3", "capset"}} {
				if r.libcontainer && len(calls) > 1 {
					continue // a Go program needs them
				}
				const program = "grep"
				args := []string{"-E", "^(Cap(Prm|Eff|Bnd)|Seccomp):", "/proc/self/status"}
				want := "CapPrm:\t00000000880425fb\nCapEff:\t00000000880425fb\nCapBnd:\t00000000880425fb\nSeccomp:\t2"
				if uid != 0 {
					want = "CapPrm:\t0000000000000000\nCapEff:\t0000000000000000\nCapBnd:\t00000000880425fb\nSeccomp:\t2"
				}
				spec := Spec(r.id(), append([]string{program}, args...)...)
				spec.Process.NoNewPrivileges, spec.Process.User.UID = false, uid
				spec.Linux.Seccomp = everyCallButThose(calls...)
				r.says(spec, want)
				spec.Linux.CgroupsPath = CgroupParent + "/" + r.id()
				p := *spec.Process
				spec.Process.Args = []string{"/bin/sleep", "1000"}
				c := r.create(spec, coracle.Stdio{})
				pid := c.Pid()
				r.must(c.Start(r.Context()))
				r.execSays(c, &p, want)
				r.end(c, pid)
			}
		}
	},

	"a set-uid program counts without no_new_privs, and not with it": func(r *rig) {
		for noNewPrivs, want := range map[bool]string{true: "1", false: "0"} {
			spec := r.spec("grep NoNewPrivs: /proc/self/status | cut -f2")
			spec.Process.NoNewPrivileges = noNewPrivs
			r.says(spec, map[string]string{"1": "1", "0": "0"}[want])
		}
	},
}

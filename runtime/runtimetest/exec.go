package runtimetest

import (
	"os"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/runtime"
)

func idOf(spec *specs.Spec) string {
	return spec.Linux.CgroupsPath[len(CgroupParent)+1:]
}

// process is an exec of a shell script with a container's usual rights.
func process(script string) *specs.Process {
	p := Spec("unused", "/bin/sh", "-c", script).Process
	return p
}

var execTests = map[string]func(*rig){
	"stdio of init": func(r *rig) {
		in, out, errs := r.output(), r.output(), r.output()
		c := r.create(r.spec("cat; echo problem >&2"), runtime.Stdio{Stdin: in.read, Stdout: out.write, Stderr: errs.write})
		pid := c.Pid()
		in.read.Close()
		r.must(c.Start(r.Context()))
		_, err := in.write.WriteString("through the pipe\n")
		r.must(err)
		in.write.Close()
		if got := r.wait(pid); got != 0 {
			r.Fatalf("exit status %d", got)
		}
		if o, e := out.text(), errs.text(); o != "through the pipe" || e != "problem" {
			r.Fatalf("stdout %q, stderr %q", o, e)
		}
		r.must(c.Delete(r.Context(), runtime.DeleteOptions{}))
	},

	"files become descriptors from 3 and nothing else leaks in": func(r *rig) {
		out := r.output()
		c := r.create(r.spec(
			"echo hello >&3; exec 3>&-; for f in 3 4 5 6 7 8 9 10 11 12; do test -e /proc/self/fd/$f && echo left $f; done; true",
		),
			runtime.Stdio{Files: []*os.File{out.write}, Stdout: out.write})
		pid := c.Pid()
		r.must(c.Start(r.Context()))
		r.wait(pid)
		if got := out.text(); got != "hello" {
			r.Fatalf("got %q, want only hello", got)
		}
		r.must(c.Delete(r.Context(), runtime.DeleteOptions{}))
	},

	"exec": func(r *rig) {
		c, pid := r.running()
		out := r.output()
		p := process("echo $GREETING $(id -u):$(id -g) $(pwd) $(hostname); exit 9")
		p.Env = append(p.Env, "GREETING=ahoy")
		p.Cwd = "/tmp"
		p.User = specs.User{UID: 1234, GID: 5678}
		p.Capabilities = nil
		child, err := c.Exec(r.Context(), p, runtime.ExecOptions{Stdio: runtime.Stdio{Stdout: out.write}})
		r.must(err)
		if got := r.wait(child); got != 9 {
			r.Errorf("exit status %d, want 9", got)
		}
		if got := out.text(); got != "ahoy 1234:5678 /tmp boat" {
			r.Errorf("output %q", got)
		}
		r.end(c, pid)
	},

	"the host's /dev/null does not become the user's": func(r *rig) {
		const uid = 4711 // no other test uses it
		spec := r.spec("true")
		spec.Process.User, spec.Process.Capabilities = specs.User{UID: uid, GID: uid}, nil
		c := r.create(spec, runtime.Stdio{})
		pid := c.Pid()
		r.must(c.Start(r.Context()))
		r.end(c, pid)
		c, pid = r.running()
		p := process("true")
		p.User, p.Capabilities = specs.User{UID: uid, GID: uid}, nil
		child, err := c.Exec(r.Context(), p, runtime.ExecOptions{})
		r.must(err)
		r.wait(child)
		r.end(c, pid)
		var st unix.Stat_t
		r.must(unix.Stat("/dev/null", &st))
		if st.Uid == uid {
			r.must(unix.Chown("/dev/null", 0, 0))
			r.Errorf("the host's /dev/null was given to user %d", uid)
		}
	},

	"exec lands in the cgroup": func(r *rig) {
		c, pid := r.running()
		child, err := c.Exec(r.Context(), process("exec sleep 1000"), runtime.ExecOptions{})
		r.must(err)
		pids, err := c.Pids(r.Context())
		r.must(err)
		if len(pids) != 2 {
			r.Errorf("pids are %v, want %d and %d", pids, pid, child)
		}
		r.must(unix.Kill(child, unix.SIGKILL))
		r.wait(child)
		r.end(c, pid)
	},

	"exec of what is not there": func(r *rig) {
		c, pid := r.running()
		p := process("")
		p.Args = []string{"/no/such/program"}
		_, err := c.Exec(r.Context(), p, runtime.ExecOptions{})
		if err == nil || !strings.Contains(err.Error(), "/no/such/program") {
			r.Errorf("error is %v, want one that names the program", err)
		}
		r.status(c, specs.StateRunning)
		r.end(c, pid)
	},

	"exec with an invalid process": func(r *rig) {
		c, pid := r.running()
		p := process("true")
		p.Cwd = "relative"
		_, err := c.Exec(r.Context(), p, runtime.ExecOptions{})
		r.wantErr(err, runtime.ErrInvalidSpec)
		r.end(c, pid)
	},

	"exec needs a running container": func(r *rig) {
		c := r.create(r.spec("exec sleep 1000"), runtime.Stdio{})
		pid := c.Pid()
		_, err := c.Exec(r.Context(), process("true"), runtime.ExecOptions{})
		r.wantErr(err, runtime.ErrNotRunning) // created
		r.must(c.Start(r.Context()))
		r.must(c.Pause(r.Context()))
		_, err = c.Exec(r.Context(), process("true"), runtime.ExecOptions{})
		r.wantErr(err, runtime.ErrNotRunning) // paused
		r.must(c.Resume(r.Context()))
		r.must(c.Signal(r.Context(), unix.SIGKILL))
		r.wait(pid)
		_, err = c.Exec(r.Context(), process("true"), runtime.ExecOptions{})
		r.wantErr(err, runtime.ErrNotRunning) // stopped
		r.must(c.Delete(r.Context(), runtime.DeleteOptions{}))
	},
}

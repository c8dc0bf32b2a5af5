package runtimetest

import (
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/runtime"
)

// hostPid makes a container without a pid namespace of its own: the kernel does
// not end its processes with init.
func hostPid(spec *specs.Spec) *specs.Spec {
	spec.Linux.Namespaces = slices.DeleteFunc(spec.Linux.Namespaces, func(n specs.LinuxNamespace) bool {
		return n.Type == specs.PIDNamespace
	})
	return spec
}

var signalTests = map[string]func(*rig){
	"signal reaches init": func(r *rig) {
		out := r.output()
		c := r.create(r.spec("trap 'exit 42' TERM; echo ready; while :; do sleep 0.05; done"), runtime.Stdio{Stdout: out.write})
		pid := c.Pid()
		r.must(c.Start(r.Context()))
		out.line()
		r.must(c.Signal(r.Context(), unix.SIGTERM))
		if got := r.wait(pid); got != 42 {
			r.Fatalf("exit status %d, want 42", got)
		}
		r.wantErr(c.Signal(r.Context(), unix.SIGTERM), runtime.ErrNotRunning)
		r.must(c.Delete(r.Context(), runtime.DeleteOptions{}))
	},

	"SIGTERM ends a container that waits for start": func(r *rig) {
		c := r.create(r.spec("true"), runtime.Stdio{})
		pid := c.Pid()
		r.must(c.Signal(r.Context(), unix.SIGUSR2)) // which ends it or not
		if err := c.Signal(r.Context(), unix.SIGTERM); err != nil {
			r.wantErr(err, runtime.ErrNotRunning)
		}
		r.wait(pid)
		r.must(c.Delete(r.Context(), runtime.DeleteOptions{}))
	},

	"signal all reaches every process": func(r *rig) {
		c, pid := r.running()
		child, err := c.Exec(r.Context(), process("exec sleep 1000"), runtime.ExecOptions{})
		r.must(err)
		r.must(c.SignalAll(r.Context(), unix.SIGKILL))
		if a, b := r.wait(child), r.wait(pid); a != 137 || b != 137 {
			r.Fatalf("exit statuses %d and %d, want 137", a, b)
		}
		r.wantErr(c.SignalAll(r.Context(), unix.SIGKILL), runtime.ErrNotRunning)
		r.must(c.Delete(r.Context(), runtime.DeleteOptions{}))
	},

	"signal all without a pid namespace": func(r *rig) {
		out := r.output()
		c := r.create(hostPid(r.spec("sleep 1000 & sleep 1000 & echo ready; wait")), runtime.Stdio{Stdout: out.write})
		pid := c.Pid()
		r.must(c.Start(r.Context()))
		out.line()
		r.must(c.SignalAll(r.Context(), unix.SIGKILL))
		r.wait(pid)
		r.must(c.Delete(r.Context(), runtime.DeleteOptions{}))
		out.text() // ends only when all that hold the pipe are dead
	},

	// Whose processes fork faster than they can be found one by one. Init forks but once, before
	// there are too many: a shell that cannot fork ends, without a word.
	"signal all ends a fork bomb": func(r *rig) {
		out := r.output()
		spec := hostPid(
			r.spec("bomb() { bomb & bomb & }; exec 2>/dev/null; (while :; do bomb; done & while :; do bomb; done) & echo ready; exec sleep 1000"),
		)
		spec.Linux.Resources.Pids = &specs.LinuxPids{Limit: ptr(int64(100))}
		c := r.create(spec, runtime.Stdio{Stdout: out.write})
		pid := c.Pid()
		r.must(c.Start(r.Context()))
		out.line()
		r.must(c.SignalAll(r.Context(), unix.SIGKILL))
		out.text() // ends only when all that hold the pipe are dead
		r.wait(pid)
		r.must(c.Delete(r.Context(), runtime.DeleteOptions{}))
	},

	"delete kills what init left behind": func(r *rig) {
		out := r.output()
		c := r.create(hostPid(r.spec("sleep 1000 & echo ready; exit 0")), runtime.Stdio{Stdout: out.write})
		pid := c.Pid()
		r.must(c.Start(r.Context()))
		out.line()
		r.wait(pid)
		r.status(c, specs.StateStopped)
		r.must(c.Delete(r.Context(), runtime.DeleteOptions{}))
		out.text()
	},

	"kill of a paused container": func(r *rig) {
		c, pid := r.running()
		r.must(c.Pause(r.Context()))
		r.must(c.Signal(r.Context(), unix.SIGKILL))
		r.wait(pid)
		r.must(c.Delete(r.Context(), runtime.DeleteOptions{}))
	},

	"forced delete of a paused container": func(r *rig) {
		c, pid := r.running()
		r.must(c.Pause(r.Context()))
		r.wantErr(c.Delete(r.Context(), runtime.DeleteOptions{}), runtime.ErrRunning)
		r.must(c.Delete(r.Context(), runtime.DeleteOptions{Force: true}))
		r.wait(pid)
	},
}

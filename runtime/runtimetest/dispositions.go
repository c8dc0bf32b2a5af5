package runtimetest

import (
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	cruntime "github.com/coracle-project/coracle/runtime"
)

// deaf are signals that callers ignore or block, as nohup(1), a shell's background jobs and service
// managers do.
var deaf = []unix.Signal{unix.SIGHUP, unix.SIGINT, unix.SIGPIPE, unix.SIGUSR1, unix.SIGTERM}

const noSignals = "SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n"

var dispositionTests = group{
	"signals have their defaults, whatever the maker ignores": func(r *rig) {
		for _, s := range deaf {
			signal.Ignore(s)
			defer signal.Reset(s)
		}
		r.defaultSignals()
	},

	"signals are not blocked, whatever the maker blocks": func(r *rig) {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		var set, old unix.Sigset_t
		for _, s := range deaf {
			set.Val[0] |= 1 << (s - 1)
		}
		r.must(unix.PthreadSigmask(unix.SIG_BLOCK, &set, &old))
		defer func() { r.must(unix.PthreadSigmask(unix.SIG_SETMASK, &old, nil)) }()
		r.defaultSignals()
	},
}

// defaultSignals creates a container and another process in it, and checks what both do on signals.
func (r *rig) defaultSignals() {
	r.Helper()
	look := []string{"/bin/grep", "-E", "^Sig(Blk|Ign|Cgt)", "/proc/self/status"}
	out := r.output()
	spec := Spec(r.id(), look...)
	spec.Linux.Seccomp = nil
	c := r.create(spec, cruntime.Stdio{Stdout: out.write})
	pid := c.Pid()
	waiting, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	r.must(err)
	if !strings.Contains(string(waiting), noSignals) {
		r.Errorf("init that waits for start has\n%s", grepSig(string(waiting)))
	}
	r.must(c.Start(r.Context()))
	r.wait(pid)
	want := strings.TrimSpace(noSignals + "SigCgt:\t0000000000000000")
	if got := out.text(); got != want {
		r.Errorf("init's program has\n%s", got)
	}
	r.must(c.Delete(r.Context(), cruntime.DeleteOptions{}))

	c, pid = r.running()
	p := &specs.Process{}
	*p = *process("")
	p.Args = look
	r.execSays(c, p, want)
	r.end(c, pid)
}

func grepSig(status string) string {
	var out strings.Builder
	for line := range strings.Lines(status) {
		if strings.HasPrefix(line, "Sig") {
			out.WriteString(line)
		}
	}
	return out.String()
}

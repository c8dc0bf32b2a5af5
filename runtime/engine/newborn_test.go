package engine_test

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/runtime/engine"
	"github.com/coracle-project/coracle/runtime/internal/stuck"
	"github.com/coracle-project/coracle/runtime/runtimetest"

	coracle "github.com/coracle-project/coracle/runtime"
)

// killNewborn waits until the process that a starter clones forks another one, and kills that
// before its first instruction, as the kernel does when a PID namespace ends. It returns its pid.
func killNewborn(starter int) (pid int, err error) {
	runtime.LockOSThread() // the tracer is this thread; it ends with the goroutine, and lets go of all
	const follow = unix.PTRACE_O_TRACECLONE | unix.PTRACE_O_TRACEFORK | unix.PTRACE_O_TRACEVFORK
	if _, _, errno := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_SEIZE, uintptr(starter), 0, follow, 0, 0); errno != 0 {
		return 0, fmt.Errorf("ptrace(PTRACE_SEIZE): %w", errno)
	}
	seized <- struct{}{}
	tracee := starter
	for {
		var status unix.WaitStatus
		if _, err := unix.Wait4(tracee, &status, unix.WALL, nil); err != nil {
			return 0, fmt.Errorf("wait for process %d: %w", tracee, err)
		}
		switch {
		case !status.Stopped():
			return 0, fmt.Errorf("process %d ended before it forked: %v", tracee, status)
		case status.TrapCause() == unix.PTRACE_EVENT_CLONE || status.TrapCause() == unix.PTRACE_EVENT_FORK:
			born, err := unix.PtraceGetEventMsg(tracee)
			if err != nil {
				return 0, err
			}
			if tracee != starter {
				return int(born), unix.Kill(int(born), unix.SIGKILL)
			}
			if err := unix.PtraceDetach(starter); err != nil {
				return 0, err
			}
			tracee = int(born)
		default:
			if err := unix.PtraceCont(tracee, 0); err != nil {
				return 0, err
			}
		}
	}
}

var seized = make(chan struct{})

// A process that died before it could say who it is was never reaped. In a PID namespace it keeps
// the first process of the namespace from ending (zap_pid_ns_processes): the container never ended.
func TestExecDiesAtBirth(t *testing.T) {
	bundle, ctx := runtimetest.Bundle(t), t.Context()
	e, err := engine.New(engine.Config{StateDir: filepath.Join(t.TempDir(), "state")})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	id := fmt.Sprintf("birth-%d", os.Getpid())
	c, err := e.Create(ctx, id, runtimetest.Spec(id, "/bin/sleep", "1000"), coracle.CreateOptions{Bundle: bundle})
	if err != nil {
		t.Fatal(err)
	}
	pid := c.Pid()
	if err := c.Start(ctx); err != nil {
		t.Fatal(err)
	}
	var starter []int
	for _, p := range starters(t) {
		if p != pid {
			starter = append(starter, p)
		}
	}
	if len(starter) != 1 {
		t.Fatalf("starters %v, want one", starter)
	}
	type killed struct {
		pid int
		err error
	}
	done := make(chan killed, 1)
	go func() {
		pid, err := killNewborn(starter[0])
		done <- killed{pid, err}
	}()
	select {
	case <-seized:
	case k := <-done:
		t.Fatal(k.err)
	}
	_, err = c.Exec(ctx, runtimetest.Spec(id, "/bin/true").Process, coracle.ExecOptions{})
	k := <-done
	if k.err != nil {
		t.Fatal(k.err)
	}
	if err == nil || !strings.Contains(err.Error(), "the process died while it joined the container") {
		t.Errorf("exec: %v", err)
	}
	if state := stuck.State(k.pid); state != 0 && stuck.Parent(k.pid) == os.Getpid() {
		t.Errorf("the process is still there, in state %c", state)
	}
	if err := c.Delete(ctx, coracle.DeleteOptions{Force: true}); err != nil {
		t.Error(err)
	}
	if err := stuck.Reap(pid, 10*time.Second); err != nil {
		t.Errorf("the container has not ended: %v", err)
	}
	_ = stuck.Reap(k.pid, time.Second) // so that it can
}

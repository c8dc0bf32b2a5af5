package engine_test

import (
	"errors"
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
// before its first instruction, as the kernel does when a PID namespace ends. It returns its pid,
// and closes ready when the starter is traced.
func killNewborn(starter int, ready chan<- struct{}) (pid int, err error) {
	runtime.LockOSThread() // the tracer is a thread, not a process
	defer runtime.UnlockOSThread()
	const follow = unix.PTRACE_O_TRACECLONE | unix.PTRACE_O_TRACEFORK | unix.PTRACE_O_TRACEVFORK
	if _, _, errno := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_SEIZE, uintptr(starter), 0, follow, 0, 0); errno != 0 {
		return 0, fmt.Errorf("ptrace(PTRACE_SEIZE): %w", errno)
	}
	close(ready)
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
				return int(born), errors.Join(unix.Kill(int(born), unix.SIGKILL), unix.PtraceDetach(tracee))
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
	done, ready := make(chan killed, 1), make(chan struct{})
	go func() {
		pid, err := killNewborn(starter[0], ready)
		done <- killed{pid, err}
	}()
	select {
	case <-ready:
	case k := <-done:
		t.Fatal(k.err)
	}
	_, err = c.Exec(ctx, runtimetest.Spec(id, "/bin/true").Process, coracle.ExecOptions{})
	var k killed
	select {
	case k = <-done:
	case <-time.After(time.Minute):
		t.Fatalf("the exec has forked no process: %v", err)
	}
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
	_ = stuck.Reap(k.pid, time.Second) // lets the container end if a check above failed
}

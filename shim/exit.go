package shim

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/shim/api"
	"github.com/coracle-project/coracle/shim/pidfd"
)

// wait returns when the process has ended, with its code. Only one caller may wait;
// it calls ended when others may know. ok is false if the process was let go of. A child is reaped.
func (p *process) wait() (e exitState, ok bool) { return p.waitBy(pidfd.Wait) }

// waitUnreaped is wait, but the caller reaps a child, by reapEnded, when its end is on record: if
// this shim is killed before, the keeper, its next parent, still learns the code.
func (p *process) waitUnreaped() (e exitState, ok bool) { return p.waitBy(pidfd.WaitUnreaped) }

func (p *process) waitBy(wait func(*os.File) (int32, error)) (e exitState, ok bool) {
	if p.remote != nil {
		return p.remote.wait(p.pid)
	}
	code, err := int32(pidfd.Unknown), error(nil)
	if p.pidfd != nil {
		if code, err = wait(p.pidfd); err != nil {
			return exitState{}, false
		}
	}
	if code == pidfd.Unknown && p.left != nil {
		if told, ok := p.left(p.pid, p.startTime); ok {
			code = told
		}
	}
	return endOf(code), true
}

func (p *process) reapEnded() {
	if p.remote == nil && p.pidfd != nil {
		pidfd.Reap(p.pidfd)
	}
}

// reap waits for the end of a killed process and releases it. If the kernel does not end the
// process before ctx ends, it is reaped in the background.
func (p *process) reap(ctx context.Context) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = p.wait()
		p.close()
	}()
	select {
	case <-ended:
	case <-ctx.Done():
	}
}

// errUnheld is the kind of error of a process that has been started, may run, and is not followed.
var errUnheld = errors.New("it may still run")

// endChild kills a child and reaps it, without a descriptor: there may be none. The number is the
// child's until it is reaped. What is no child of ours is not killed, for its number may be
// another's by now.
func endChild(pid int) error {
	const tick = 2 * time.Millisecond
	killed := false
	for deadline := time.Now().Add(dying); ; time.Sleep(tick) {
		var info unix.Siginfo
		err := unix.Waitid(unix.P_PID, pid, &info, unix.WEXITED|unix.WNOHANG|unix.WALL, nil)
		switch {
		case err == nil && info.Signo != 0: // it has been reaped
			return nil
		case err != nil && !errors.Is(err, unix.EINTR):
			return fmt.Errorf("kill process %d: %w: %w", pid, err, errUnheld)
		case err == nil && !killed:
			killed = unix.Kill(pid, unix.SIGKILL) == nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("kill process %d: it has not ended: %w", pid, errUnheld)
		}
	}
}

// endOf is the state of a process that has just been found to have ended.
func endOf(code int32) exitState {
	if code == pidfd.Unknown {
		return exitState{Code: unknownExit, Unknown: true, At: time.Now()}
	}
	return exitState{Code: code, At: time.Now()}
}

// unknownExit is the exit code that is told when it cannot be known, as containerd has it.
const unknownExit = 255

func (p *process) ended(e exitState) {
	p.mu.Lock()
	p.exit = &e
	p.mu.Unlock()
	close(p.exited)
}

// exitState is nil while the process runs.
func (p *process) exitState() *exitState {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.exit
}

func (c *container) exitEvent(execID string, p *process) *api.Event {
	e := p.exitState()
	at := e.At.UnixNano()
	if e.Unknown {
		at = 0
	}
	return &api.Event{
		Kind: api.Event_EXIT, Id: c.id, PodId: c.record().PodID, ExecId: execID, Pid: uint32(p.pid),
		ExitStatus: uint32(e.Code), ExitedAtNs: at, OomKilled: e.OOMKilled,
	}
}

package shim

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/runtime"
	"github.com/coracle-project/coracle/shim/internal/rawfd"
	"github.com/coracle-project/coracle/shim/pidfd"
)

// rounds is how often killSession looks for what was forked while it killed. A process that
// forks faster than it is found is the container's own affair, whose end kills it.
const rounds = 16

// dying is how long killSession waits for what it has killed: it takes no time, unless the
// machine has much else to do, or the process is frozen or waits for a broken disk.
const dying = 5 * time.Second

// killSession kills what is left of an exec, and waits until it is gone: the processes of the
// session that it led, and those that began one of their own and still have a stream of the exec's.
// They would go on after a timeout otherwise. What has let go of the streams, too, or was there
// before the exec, meant to stay.
func (c *container) killSession(ctx context.Context, e *execution, p *process) error {
	if p.remote != nil {
		// A remote program's pids may belong to a virtual machine: they mean nothing here.
		return nil
	}
	engine, err := c.alive()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, dying)
	defer cancel()
	streams, gone := e.rec.streams()
	defer streams.close()
	err = killAll(ctx, engine, p.pid, func(_ int, s pidfd.Stat) bool { return s.Session == p.pid })
	if err != nil {
		return fmt.Errorf("kill the session of exec process %d in container %s: %w", p.pid, c.id, err)
	}
	select {
	case <-p.exited: // it has the streams itself until then
	case <-ctx.Done():
		return nil // the kernel does not end it: no one can do more
	}
	if len(gone) == 0 && !streams.inUse() {
		return nil
	}
	err = killAll(ctx, engine, p.pid, func(pid int, s pidfd.Stat) bool {
		return p.before(pid, s) && (streams.heldBy(ctx, pid) || holdsAny(ctx, pid, gone))
	})
	if err != nil {
		return fmt.Errorf("kill who has streams of exec process %d in container %s: %w", p.pid, c.id, err)
	}
	return nil
}

// killExec kills an exec's process and everything that killSession kills.
func (c *container) killExec(ctx context.Context, e *execution, p *process) error {
	if err := p.signal(unix.SIGKILL); err != nil && !errors.Is(err, runtime.ErrNotRunning) {
		return err
	}
	if err := faultExecSignalled.At(ctx); err != nil {
		return err
	}
	return c.killSession(ctx, e, p)
}

// before says whether p is older than a process: a server that a client hands its streams to
// (SCM_RIGHTS) is not. Of two that started in the same tick of the clock, the older one has the
// lower pid.
func (p *process) before(pid int, s pidfd.Stat) bool {
	return s.StartTime > p.startTime || s.StartTime == p.startTime && pid > p.pid
}

// whom says whether a process is to be killed.
type whom func(pid int, s pidfd.Stat) bool

// killAll kills whom it finds but one, and waits until all are gone.
func killAll(ctx context.Context, engine runtime.Observable, but int, kill whom) error {
	for range rounds {
		killed, err := killOnce(ctx, engine, but, kill)
		if killed == 0 || err != nil {
			return err
		}
	}
	return nil
}

// killOnce kills whom it finds, and waits for them; more may have been forked meanwhile.
func killOnce(ctx context.Context, engine runtime.Observable, but int, kill whom) (killed int, err error) {
	pids, err := engine.Pids(ctx)
	if err != nil {
		return 0, err
	}
	var dead []*os.File
	defer func() {
		for _, f := range dead {
			f.Close()
		}
	}()
	for _, pid := range pids {
		if pid == but {
			continue
		}
		f, err := killProcess(pid, kill)
		if err != nil {
			return len(dead), err
		}
		if f != nil {
			dead = append(dead, f)
		}
	}
	for _, f := range dead {
		if pidfd.Ended(ctx, f) != nil {
			return 0, nil // the kernel does not end it: no one can do more
		}
	}
	return len(dead), nil
}

// killProcess kills a process, and returns its pidfd, if it is to be killed and alive. The pidfd
// comes before the look, so that what is killed is what was looked at.
func killProcess(pid int, kill whom) (*os.File, error) {
	f, err := pidfd.Open(pid)
	if err != nil {
		return nil, nil // it has ended
	}
	stat, err := pidfd.ReadStat(pid)
	if err != nil || stat.State == 'Z' || stat.State == 'X' || !kill(pid, stat) {
		f.Close()
		return nil, nil
	}
	rawfd.With(f, func(fd int) { err = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0) })
	if err == nil {
		return f, nil
	}
	f.Close()
	if err == unix.ESRCH {
		err = nil
	}
	return nil, err
}

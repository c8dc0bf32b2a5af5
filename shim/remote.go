package shim

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/runtime"
)

// remote is a process's link to the program whose child it is.
type remote struct {
	runtime.Remote
	ctx  context.Context // ends when the process is let go of
	stop context.CancelFunc
}

func newRemote(r runtime.Remote) *remote {
	ctx, stop := context.WithCancel(context.Background())
	return &remote{r, ctx, stop}
}

func remoteProcess(r runtime.Remote, pid int) *process {
	return &process{pid: pid, remote: newRemote(r), exited: make(chan struct{})}
}

// askAgain is how long is waited after a question that failed for no good reason.
const askAgain = time.Second

// wait returns when the process has ended; not ok if it was let go of.
func (r *remote) wait(pid int) (e exitState, ok bool) {
	for {
		x, err := r.Wait(r.ctx, pid)
		switch {
		case err == nil:
			return exitState{Code: int32(x.Status), At: x.At}, true
		case r.ctx.Err() != nil:
			return exitState{}, false
		case errors.Is(err, runtime.ErrNotFound):
			return exitState{Code: unknownExit, Unknown: true, At: time.Now()}, true
		}
		select {
		case <-time.After(askAgain):
		case <-r.ctx.Done():
		}
	}
}

// remoteTimeout bounds what is done to a process by its own program.
const remoteTimeout = 10 * time.Second

func (r *remote) signal(pid int, sig unix.Signal) error {
	ctx, cancel := context.WithTimeout(r.ctx, remoteTimeout)
	defer cancel()
	return r.SignalProcess(ctx, pid, sig)
}

// resize sets the size of a terminal that the other program has.
func (p *process) resize(width, height uint16) error {
	ctx, cancel := context.WithTimeout(p.remote.ctx, remoteTimeout)
	defer cancel()
	return p.remote.Resize(ctx, p.pid, width, height)
}

// awaitStdin closes our end of the input of a process that the other program has made, and returns
// when that program has opened its own, which it may do after it has answered. What is written
// before would be lost, and the end of input, if that came before, would never be seen.
func (p *process) awaitStdin(ctx context.Context, child *childEnds, log *slog.Logger) {
	if p.remote == nil || child.Stdin == nil {
		return
	}
	path := child.Stdin.Name()
	child.Stdin.Close()
	child.Stdin = nil
	ctx, cancel := context.WithTimeout(ctx, remoteTimeout)
	defer cancel()
	go func() {
		select {
		case <-p.exited:
			cancel()
		case <-ctx.Done():
		}
	}()
	if err := awaitReader(ctx, path); err != nil && !errors.Is(err, context.Canceled) {
		log.Warn("the input of a process has no reader", "pid", p.pid, "err", err)
	}
}

// closeStdin has the other program, if there is one, close what it has of the process's input. One
// that has ended has none.
func (p *process) closeStdin() {
	if p.remote == nil {
		return
	}
	ctx, cancel := context.WithTimeout(p.remote.ctx, remoteTimeout)
	defer cancel()
	_ = p.remote.CloseStdin(ctx, p.pid)
}

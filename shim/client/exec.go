package client

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	task "github.com/containerd/containerd/api/runtime/task/v3"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/shim/api"
	"github.com/coracle-project/coracle/shim/pidfd"
)

// cleanupTimeout bounds what is done for a call after its context has ended.
const cleanupTimeout = 10 * time.Second

// killTimeout is how long an Exec that is over waits for the kernel to end what it killed.
const killTimeout = 2 * time.Second

// Exec runs a process to its end and returns its exit code. When ctx ends first the process is
// killed, with its session and, unless it has a terminal, what it has started that still has one of
// its streams; ctx's error is returned once all are gone (but processes that the kernel cannot end
// are waited for two seconds at most). A process that survives the shim is awaited through the next
// shim. The shim kills a process that outlives this daemon, or that runs two seconds beyond ctx's
// deadline.
//
// What the process printed before it exited has been written to the Streams when Exec
// returns, but not what its children print later.
func (c *Client) Exec(ctx context.Context, r ExecRequest) (exitCode int32, err error) {
	spec, err := json.Marshal(r.Process)
	if err != nil {
		return 0, fmt.Errorf("exec in container %s: %w", r.ID, err)
	}
	l, err := c.forPod(r.PodID)
	if err != nil {
		return 0, fmt.Errorf("exec in container %s: %w", r.ID, err)
	}
	p, err := c.makeFIFOs(r.Streams, r.Process.Terminal)
	if err != nil {
		return 0, fmt.Errorf("exec in container %s: %w", r.ID, err)
	}
	defer p.close()
	execID := rand.Text()
	// The caller need not wait for the shim to forget the process.
	exited, refused := false, false
	defer func() {
		gone := c.discardExec(ctx, l, r.ID, execID, exited)
		if !exited && !refused {
			select {
			case <-gone:
			case <-time.After(killTimeout):
			}
		}
	}()
	p.dropReader() // Run returns when the process's stdin is open
	var run *api.RunResponse
	if err := l.call(ctx, func(ctx context.Context, k *conn) (err error) {
		run, err = k.run(ctx, &api.RunRequest{
			Id: r.ID, ExecId: execID, Process: spec, Terminal: r.Process.Terminal,
			Stdin: p.stdin, Stdout: p.stdout, Stderr: p.stderr,
			Owner: self(), TimeoutNs: timeoutOf(ctx),
		})
		return err
	}); err != nil {
		refused = ctx.Err() == nil // or the process may run
		return 0, err
	}
	exited = run.Exited
	p.dropGuards()
	p.copy(r.Streams.Stdin, func() {
		// Where another program keeps the process's stdin open besides us, it has to be told.
		_ = l.call(ctx, func(ctx context.Context, k *conn) error {
			_, err := k.task.CloseIO(ctx, &task.CloseIORequest{ID: r.ID, ExecID: execID, Stdin: true})
			return err
		})
	})
	rctx, stop := context.WithCancel(ctx)
	defer stop()
	if r.Streams.Resize != nil && r.Process.Terminal {
		go c.resize(rctx, r.PodID, r.ID, execID, r.Streams.Resize)
	}
	if exitCode = int32(run.ExitStatus); !exited {
		err = l.again(ctx, func(ctx context.Context, k *conn) error {
			res, err := k.task.Wait(ctx, &task.WaitRequest{ID: r.ID, ExecID: execID})
			exitCode = int32(res.GetExitStatus())
			return err
		})
		exited = err == nil
	}
	if ctx.Err() != nil {
		return 0, ctx.Err() // discardExec kills it
	}
	if err != nil {
		return 0, err
	}
	if r.Process.Terminal {
		return exitCode, p.await(ctx) // the shim ends the output when it has copied all
	}
	return exitCode, p.finish(ctx)
}

// self identifies this process as the owner of its execs, which end with it. nil if that is
// unknown.
var self = sync.OnceValue(func() *api.Owner {
	start, err := pidfd.StartTime(os.Getpid())
	if err != nil {
		return nil
	}
	var ns unix.Stat_t
	if err := unix.Stat("/proc/self/ns/pid", &ns); err != nil {
		return nil
	}
	return &api.Owner{Pid: uint32(os.Getpid()), StartTime: start, PidNamespace: ns.Ino}
})

// timeoutOf is the time left until ctx's deadline, in nanoseconds; 0 for no limit.
func timeoutOf(ctx context.Context) int64 {
	end, limited := ctx.Deadline()
	if !limited {
		return 0
	}
	return max(int64(time.Until(end)), 1)
}

// discardExec kills the process, unless it is known to have exited, and has the shim
// forget it, behind the caller's back, again and again until it does. That ctx has not ended tells
// nothing: the shim knows its deadline too, and may be the first to see it pass. gone is closed
// when the process has ended, or when that takes too long.
func (c *Client) discardExec(ctx context.Context, l *link, id, execID string, exited bool) (gone <-chan struct{}) {
	ended := make(chan struct{})
	discard := func() {
		end := sync.OnceFunc(func() { close(ended) })
		defer end()
		for pause := time.Second; ; pause = min(2*pause, time.Minute) {
			err := c.forgetExec(ctx, l, id, execID, exited, end)
			if err == nil || errors.Is(err, ErrNotFound) || c.ctx.Err() != nil {
				return
			}
			c.cfg.Log.Warn("exec not forgotten yet", "container", id, "exec", execID, "err", err)
			select {
			case <-time.After(pause):
			case <-l.done:
				return
			case <-c.ctx.Done():
				return
			}
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		close(ended)
	} else {
		c.work.Go(discard)
	}
	return ended
}

// forgetExec is one attempt of discardExec; ended is called when the process has ended, or when
// that takes too long.
func (c *Client) forgetExec(ctx context.Context, l *link, id, execID string, exited bool, ended func()) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	stop := context.AfterFunc(c.ctx, cancel)
	defer stop()
	if !exited {
		_ = l.again(ctx, func(ctx context.Context, k *conn) error {
			if _, err := k.task.Kill(ctx, &task.KillRequest{ID: id, ExecID: execID, Signal: sigkill}); err != nil {
				return err
			}
			_, err := k.task.Wait(ctx, &task.WaitRequest{ID: id, ExecID: execID})
			return err
		})
	}
	ended()
	return l.again(ctx, func(ctx context.Context, k *conn) error {
		_, err := k.task.Delete(ctx, &task.DeleteRequest{ID: id, ExecID: execID})
		return err
	})
}

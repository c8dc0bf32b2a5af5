package client

import (
	"context"
	"errors"
	"sync"
	"time"

	task "github.com/containerd/containerd/api/runtime/task/v3"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/status"
)

// attention detects a shim that does not answer. It runs only while an answer is expected: to a
// call, or the first events after connecting. On an idle node it has no timer.
type attention struct {
	mu      sync.Mutex
	pending int           // number of expected answers
	idle    chan struct{} // closed when pending becomes 0
	timer   *time.Timer   // runs attend when something has been pending for limits.attend
	active  bool          // attend is running
	closed  bool
}

// begin reports an expected answer. The caller calls done, at least once, when it is no longer
// expected.
func (l *link) begin() (done func()) {
	a := &l.attention
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.pending++; a.pending == 1 {
		a.idle = make(chan struct{})
		if !a.active && !a.closed {
			a.timer.Reset(l.limits.attend)
		}
	}
	return sync.OnceFunc(l.answered)
}

func (l *link) answered() {
	a := &l.attention
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.pending--; a.pending == 0 {
		a.timer.Stop()
		close(a.idle)
	}
}

// end stops the pings for good.
func (a *attention) end() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
	a.timer.Stop()
}

// claim makes the caller the one that attends. It fails if another goroutine attends or no answer
// is expected.
func (a *attention) claim() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.active || a.closed || a.pending == 0 {
		return false
	}
	a.active = true
	return true
}

// leave ends the claim if no answer is expected any more.
func (a *attention) leave() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.pending > 0 && !a.closed {
		return false
	}
	a.active = false
	return true
}

func (a *attention) idled() <-chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.idle
}

// attend pings the shim until no answer is expected any more. It replaces a process that does not
// answer.
func (l *link) attend(ctx context.Context, c *Client) {
	if !l.attention.claim() {
		return
	}
	var pinging pinger
	pause := l.limits.ping
	silent := 0 // the process whose unanswered pings are counted
	// Attend to a silent shim until it answers, even if its callers have given up.
	for missed := 0; missed > 0 || !l.attention.leave(); {
		answered := pinging.ping(ctx, l)
		if ctx.Err() != nil {
			return
		}
		replaced := false
		if !answered || !l.ready() {
			replaced = c.observe(l) // by the keeper: the new process gets its own count
			pause = l.limits.ping
		}
		if answered || replaced {
			missed = 0
		} else {
			if missed == 0 {
				silent = l.pid()
			}
			missed++
		}
		l.silent(missed)
		switch {
		case answered || l.gone() != nil:
			l.rest(ctx, pause)
			pause = min(2*pause, l.limits.calm)
		case missed >= l.limits.replace:
			missed = 0
			err := c.replace(ctx, l, silent)
			if err == nil {
				l.silent(0) // the next shim has its own count, and may never be asked
			} else if ctx.Err() == nil {
				l.failed(err)
				l.log.Error("cannot replace shim that does not answer", "err", err)
			}
		}
	}
}

// rest waits between pings while the shim answers.
func (l *link) rest(ctx context.Context, pause time.Duration) {
	t := time.NewTimer(pause)
	defer t.Stop()
	select {
	case <-t.C:
	case <-l.attention.idled():
	case <-ctx.Done():
	}
}

// pinger sends one ping at a time: a ping that the shim has not read must not be followed by more.
type pinger struct {
	asked *conn
	reply chan error
}

// ping reports whether the shim answers within limits.ping. Without an answer it takes all of that
// time.
func (p *pinger) ping(ctx context.Context, l *link) bool {
	t := time.NewTimer(l.limits.ping)
	defer t.Stop()
	k, err := l.dialed()
	if k == nil {
		// link.run keeps connecting. Connecting fails if too many connections wait to be accepted,
		// which counts as silence. Other failures are not the process's fault.
		select {
		case <-t.C:
		case <-ctx.Done():
		}
		return !errors.Is(err, unix.EAGAIN)
	}
	if p.asked != k {
		p.asked, p.reply = k, make(chan error, 1)
		reply := p.reply
		// The request outlives this call. It ends with its answer or with the connection.
		go func() {
			_, err := k.task.Connect(ctx, &task.ConnectRequest{})
			reply <- err
		}()
	}
	select {
	case err := <-p.reply:
		p.asked = nil
		if _, answered := status.FromError(err); answered { // the shim's error is an answer, too
			return true
		}
		// The connection's end is none: it is closed here when the shim takes no more requests.
		select {
		case <-t.C:
		case <-ctx.Done():
		}
		return false
	case <-t.C:
		return false
	case <-ctx.Done():
		return false
	}
}

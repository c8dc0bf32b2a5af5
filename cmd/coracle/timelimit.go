package main

import (
	"context"
	"sync"
	"time"
)

// timeLimit is a context with a time limit whose clock can be paused, for work that has limits of
// its own.
type timeLimit struct {
	context.Context // the caller's
	done            chan struct{}

	mu     sync.Mutex // guards what follows
	timer  *time.Timer
	end    time.Time // while it does not pause
	left   time.Duration
	pauses int
	err    error
}

// withTimeLimit returns a context that ends after limit, without its pauses, or with ctx. cancel
// ends it, too.
func withTimeLimit(ctx context.Context, limit time.Duration) (l *timeLimit, cancel func()) {
	l = &timeLimit{Context: ctx, done: make(chan struct{}), end: time.Now().Add(limit)}
	l.mu.Lock() // the timer may go off at once
	l.timer = time.AfterFunc(limit, func() { l.finish(context.DeadlineExceeded) })
	l.mu.Unlock()
	stop := context.AfterFunc(ctx, func() { l.finish(ctx.Err()) })
	return l, func() {
		stop()
		l.finish(context.Canceled)
	}
}

func (l *timeLimit) finish(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil || err == context.DeadlineExceeded && l.pauses > 0 { //nolint:errorlint // ours
		return // a timer that had gone off when the pause began
	}
	l.err = err
	l.timer.Stop()
	close(l.done)
}

// pause stops the clock until resume is called.
func (l *timeLimit) pause() (resume func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.pauses++; l.pauses == 1 {
		l.timer.Stop()
		l.left = max(time.Until(l.end), 0)
	}
	return sync.OnceFunc(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.pauses--; l.pauses == 0 && l.err == nil {
			l.end = time.Now().Add(l.left)
			l.timer.Reset(l.left)
		}
	})
}

// Deadline implements context.Context. While it pauses there is no time at which it ends.
func (l *timeLimit) Deadline() (end time.Time, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.pauses > 0 {
		return l.Context.Deadline()
	}
	return l.end, true
}

// remaining is the time that is left.
func (l *timeLimit) remaining() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.pauses > 0 {
		return l.left
	}
	return time.Until(l.end)
}

// Done implements context.Context.
func (l *timeLimit) Done() <-chan struct{} { return l.done }

// Err implements context.Context.
func (l *timeLimit) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

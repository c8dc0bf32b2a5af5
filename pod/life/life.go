// Package life bounds the work of the Manager: operations run within its life, and are cut off and
// awaited at its end. A Cleaner repeats deletions in the background until they succeed.
package life

import (
	"context"
	"sync"
	"time"

	"github.com/coracle-project/coracle/pod/errdefs"
)

// CleanupLimit bounds undoing after a failure, and each try of a background deletion.
const CleanupLimit = 30 * time.Second

// Life is the time between the Manager's New and Close: operations run in it and Close waits for
// them.
type Life struct {
	ctx    context.Context
	cancel context.CancelFunc

	mu    sync.Mutex
	ended bool
	work  sync.WaitGroup
}

// New starts a life.
func New() *Life {
	l := &Life{}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	return l
}

// Context ends with the life.
func (l *Life) Context() context.Context { return l.ctx }

// End cuts off all work and waits until it has returned.
func (l *Life) End() {
	l.mu.Lock()
	l.ended = true
	l.mu.Unlock()
	l.cancel()
	l.work.Wait()
}

// join counts one piece of work in; the caller calls work.Done at its end.
func (l *Life) join() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return errdefs.Errorf(errdefs.ErrUnavailable, "the daemon is shutting down")
	}
	l.work.Add(1)
	return nil
}

// Run does work with a context that ends after limit or with the life.
func (l *Life) Run(ctx context.Context, limit time.Duration, work func(context.Context) error) error {
	if err := l.join(); err != nil {
		return err
	}
	defer l.work.Done()
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	defer context.AfterFunc(l.ctx, cancel)()
	return work(ctx)
}

// Tie does work that lasts as long as its caller wants, but not beyond the life.
func (l *Life) Tie(ctx context.Context, work func(context.Context) error) error {
	if err := l.join(); err != nil {
		return err
	}
	defer l.work.Done()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(l.ctx, cancel)()
	return work(ctx)
}

// Start runs work in a goroutine of its own; it returns false, doing nothing, if the
// life has ended.
func (l *Life) Start(work func(context.Context)) bool {
	if l.join() != nil {
		return false
	}
	go func() {
		defer l.work.Done()
		work(l.ctx)
	}()
	return true
}

// Undoing is the context for taking back what a failed operation did: the operation's
// own may have ended, and that must not keep anything from being cleaned up.
func Undoing(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), CleanupLimit)
}

// Sleep waits for d, or until ctx ends.
func Sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

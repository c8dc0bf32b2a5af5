// Package flight joins calls that ask for the same, for as long as someone waits for them.
package flight

import (
	"context"
	"sync"
)

// Flight joins calls with the same key. It differs from internal/join in who the work
// belongs to: to those who wait for it. When the last of them has gone away the work
// is cancelled, because no one wants a download that no one waits for.
type Flight[K comparable, V any] struct {
	mu    sync.Mutex
	calls map[K]*call[V]
}

type call[V any] struct {
	waiters int // guarded by Flight.mu; 0 means cancelled
	cancel  context.CancelFunc
	done    chan struct{} // closed when val and err are set
	val     V
	err     error
}

// Do runs work or joins the call under way; joined says which. If ctx ends for the
// last waiter, Do returns when the work has stopped and cleaned up after itself.
func (f *Flight[K, V]) Do(ctx context.Context, key K, work func(context.Context) (V, error)) (val V, joined bool, err error) {
	for {
		c, joined, abandoned := f.enter(ctx, key, work)
		if abandoned {
			select {
			case <-c.done:
				continue
			case <-ctx.Done():
				return val, false, ctx.Err()
			}
		}
		select {
		case <-c.done:
			return c.val, joined, c.err
		case <-ctx.Done():
		}
		if f.leave(c) {
			<-c.done
		}
		return val, joined, ctx.Err()
	}
}

func (f *Flight[K, V]) enter(ctx context.Context, key K, work func(context.Context) (V, error)) (c *call[V], joined, abandoned bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if c := f.calls[key]; c != nil {
		if c.waiters == 0 {
			return c, false, true
		}
		c.waiters++
		return c, true, false
	}
	wctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	c = &call[V]{waiters: 1, cancel: cancel, done: make(chan struct{})}
	if f.calls == nil {
		f.calls = map[K]*call[V]{}
	}
	f.calls[key] = c
	go func() {
		defer cancel()
		c.val, c.err = work(wctx)
		f.mu.Lock()
		delete(f.calls, key)
		f.mu.Unlock()
		close(c.done)
	}()
	return c, false, false
}

// leave gives up waiting, and says whether the caller was the last.
func (f *Flight[K, V]) leave(c *call[V]) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	c.waiters--
	if c.waiters > 0 {
		return false
	}
	c.cancel()
	return true
}

// Package join lets a second call of an operation join the first one that is still
// under way, instead of failing or doing the work twice.
//
// It differs from golang.org/x/sync/singleflight in whose context the work runs on:
// the work belongs to no one who waits for it, so it goes on when its callers go away,
// and each caller stops waiting at its own deadline.
package join

import (
	"context"
	"fmt"
	"sync"
)

// Group joins calls by key. The zero value is ready to use.
type Group[T any] struct {
	mu    sync.Mutex
	calls map[string]*call[T]
}

type call[T any] struct {
	done chan struct{} // closed when value and err are set
	val  T
	err  error
}

// Do runs work under key, or joins the call with that key that is under way, and
// returns its result. work gets a context that keeps ctx's values but not its end;
// it must bound itself. If ctx ends first, Do returns ctx's error and the work goes on.
func (g *Group[T]) Do(ctx context.Context, key string, work func(context.Context) (T, error)) (T, error) {
	g.mu.Lock()
	c, joined := g.calls[key]
	if !joined {
		c = &call[T]{done: make(chan struct{})}
		if g.calls == nil {
			g.calls = map[string]*call[T]{}
		}
		g.calls[key] = c
	}
	g.mu.Unlock()
	if !joined {
		go g.run(context.WithoutCancel(ctx), key, c, work)
	}
	select {
	case <-c.done:
		return c.val, c.err
	case <-ctx.Done():
		var none T
		return none, ctx.Err()
	}
}

func (g *Group[T]) run(ctx context.Context, key string, c *call[T], work func(context.Context) (T, error)) {
	// A panic must not leave the callers waiting forever; it is theirs to report.
	defer func() {
		if p := recover(); p != nil {
			c.err = fmt.Errorf("panic in %s: %v", key, p)
		}
		g.mu.Lock()
		delete(g.calls, key)
		g.mu.Unlock()
		close(c.done)
	}()
	c.val, c.err = work(ctx)
}

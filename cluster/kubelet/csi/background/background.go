// Package background runs work that outlives the call that begins it, and ends with the part of
// the kubelet that owns it.
package background

import (
	"context"
	"sync"
)

// Group is work of one owner. It is safe for concurrent use.
type Group struct {
	life context.Context
	end  context.CancelFunc
	work sync.WaitGroup

	mu     sync.Mutex
	closed bool
}

// New returns a group without work.
func New() *Group {
	g := &Group{}
	g.life, g.end = context.WithCancel(context.Background())
	return g
}

// Start runs f in the background, with a context that Cancel ends. It returns false after Close.
func (g *Group) Start(f func(ctx context.Context)) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return false
	}
	g.work.Go(func() { f(g.life) })
	return true
}

// Cancel ends the context of all work.
func (g *Group) Cancel() { g.end() }

// Close cancels all work, waits for it, and lets no other begin.
func (g *Group) Close() {
	g.Cancel()
	g.mu.Lock()
	g.closed = true
	g.mu.Unlock()
	g.work.Wait()
}

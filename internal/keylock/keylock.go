// Package keylock lets operations on one object run one at a time, and those on
// different objects side by side.
package keylock

import (
	"context"
	"fmt"
	"sync"
)

// Lock is a set of locks with names; its zero value is ready. A name that no one
// holds takes no memory.
type Lock struct {
	mu   sync.Mutex
	held map[string]chan struct{} // closed when let go
}

// Acquire waits until no one holds key, or until ctx ends. The returned function
// lets go; it must be called exactly once.
func (l *Lock) Acquire(ctx context.Context, key string) (release func(), err error) {
	for {
		l.mu.Lock()
		held, taken := l.held[key]
		if !taken {
			mine := make(chan struct{})
			if l.held == nil {
				l.held = map[string]chan struct{}{}
			}
			l.held[key] = mine
			l.mu.Unlock()
			return func() {
				l.mu.Lock()
				delete(l.held, key)
				l.mu.Unlock()
				close(mine)
			}, nil
		}
		l.mu.Unlock()
		select {
		case <-held:
		case <-ctx.Done():
			return nil, fmt.Errorf("%s: waiting for another operation on it: %w", key, context.Cause(ctx))
		}
	}
}

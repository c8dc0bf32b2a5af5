package registry

import (
	"context"
	"sync"
)

// slots bounds the connections that fetch blobs at the same time from one registry. Each
// registry has its own, so that a slow one holds up only its own pulls.
type slots struct {
	each func(registry string) int

	mu sync.Mutex
	of map[string]*registrySlots // those with users
}

type registrySlots struct {
	taken chan struct{}
	users int // who have or wait for a slot; guarded by slots.mu
}

// take waits for a slot; release gives it back.
func (s *slots) take(ctx context.Context, registry string) (release func(), err error) {
	q := s.enter(registry)
	select {
	case q.taken <- struct{}{}:
		return func() { <-q.taken; s.leave(registry, q) }, nil
	case <-ctx.Done():
		s.leave(registry, q)
		return nil, ctx.Err()
	}
}

// tryTake takes a slot if one is free, else release is nil.
func (s *slots) tryTake(registry string) (release func()) {
	q := s.enter(registry)
	select {
	case q.taken <- struct{}{}:
		return func() { <-q.taken; s.leave(registry, q) }
	default:
		s.leave(registry, q)
		return nil
	}
}

func (s *slots) enter(registry string) *registrySlots {
	s.mu.Lock()
	defer s.mu.Unlock()
	q := s.of[registry]
	if q == nil {
		q = &registrySlots{taken: make(chan struct{}, s.each(registry))}
		if s.of == nil {
			s.of = map[string]*registrySlots{}
		}
		s.of[registry] = q
	}
	q.users++
	return q
}

func (s *slots) leave(registry string, q *registrySlots) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if q.users--; q.users == 0 {
		delete(s.of, registry)
	}
}

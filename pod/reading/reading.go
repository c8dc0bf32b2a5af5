// Package reading caches measurements that many clients ask for, such as the usage of a cgroup.
package reading

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/coracle-project/coracle/internal/join"
)

// Cache keeps the newest reading of each object. Concurrent calls join one read, and a reading that
// is young enough is returned again. The zero value is empty and ready for use.
type Cache[T any] struct {
	reads join.Group[Reading[T]]

	mu   sync.Mutex
	last map[string]Reading[T]
}

// Reading is a value, the time at which it was read, and the reading before it.
type Reading[T any] struct {
	Val    T
	At     time.Time
	Before *Earlier[T] // nil for the first reading
}

// Earlier is the reading before the newest one.
type Earlier[T any] struct {
	Val T
	At  time.Time
}

// Get returns a reading of id not older than age. read continues when ctx ends, so it must have a
// deadline of its own. If ctx's deadline passes first, Get returns an older reading if there is
// one. A reading is not kept if keep returns false, because the object has been removed meanwhile.
func (r *Cache[T]) Get(ctx context.Context, id string, age time.Duration, keep func(id string) bool,
	read func(context.Context) (T, error),
) (Reading[T], error) {
	old, known := r.Peek(id)
	if known && time.Since(old.At) < age {
		return old, nil
	}
	got, err := r.renew(ctx, id, age, keep, read)
	if known && errors.Is(err, context.DeadlineExceeded) {
		return old, nil
	}
	return got, err
}

// renew reads id, or joins a read in progress. It looks for a young reading again: a read that was
// in progress when Get looked may just have ended.
func (r *Cache[T]) renew(ctx context.Context, id string, age time.Duration, keep func(id string) bool,
	read func(context.Context) (T, error),
) (Reading[T], error) {
	return r.reads.Do(ctx, id, func(ctx context.Context) (Reading[T], error) {
		old, known := r.Peek(id)
		if known && time.Since(old.At) < age {
			return old, nil
		}
		v, err := read(ctx)
		if err != nil {
			return Reading[T]{}, err
		}
		now := Reading[T]{Val: v, At: time.Now()}
		if known {
			now.Before = &Earlier[T]{old.Val, old.At}
		}
		r.set(id, now, keep)
		return now, nil
	})
}

// Peek returns the newest reading of id, if there is one, whatever its age.
func (r *Cache[T]) Peek(id string) (Reading[T], bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	v, ok := r.last[id]
	return v, ok
}

// set calls keep under the lock: Forget is called after the object was removed.
func (r *Cache[T]) set(id string, v Reading[T], keep func(id string) bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !keep(id) {
		return
	}
	if r.last == nil {
		r.last = map[string]Reading[T]{}
	}
	r.last[id] = v
}

// Forget deletes the reading of id. From then on, keep must return false for id.
func (r *Cache[T]) Forget(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.last, id)
}

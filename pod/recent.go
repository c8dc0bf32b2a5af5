package pod

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/coracle-project/coracle/internal/join"
)

// recent keeps the newest reading of each object, so that however many ask, an object is
// read once in a while only: calls at the same time join, and a reading that is young
// enough is given again.
type recent[T any] struct {
	reads join.Group[reading[T]]

	mu   sync.Mutex
	last map[string]reading[T]
}

// reading is what was read at a time, and what the reading before it said.
type reading[T any] struct {
	val    T
	at     time.Time
	before *earlier[T]
}

type earlier[T any] struct {
	val T
	at  time.Time
}

// get returns a reading of id not older than age. read must bound itself: it goes on when
// ctx ends, and if it takes longer than ctx an old reading is better than none. What is
// read of an object that keep disowns (it has been removed meanwhile) is not kept.
func (r *recent[T]) get(ctx context.Context, id string, age time.Duration, keep func(id string) bool, read func(context.Context) (T, error)) (reading[T], error) {
	old, known := r.peek(id)
	if known && time.Since(old.at) < age {
		return old, nil
	}
	got, err := r.renew(ctx, id, age, keep, read)
	if known && errors.Is(err, context.DeadlineExceeded) {
		return old, nil
	}
	return got, err
}

// renew reads id, or joins who does. It looks once more whether there is a reading that is young enough: whoever missed
// one that was under way as he looked may come here just after its end.
func (r *recent[T]) renew(ctx context.Context, id string, age time.Duration, keep func(id string) bool, read func(context.Context) (T, error)) (reading[T], error) {
	return r.reads.Do(ctx, id, func(ctx context.Context) (reading[T], error) {
		old, known := r.peek(id)
		if known && time.Since(old.at) < age {
			return old, nil
		}
		v, err := read(ctx)
		if err != nil {
			return reading[T]{}, err
		}
		now := reading[T]{val: v, at: time.Now()}
		if known {
			now.before = &earlier[T]{old.val, old.at}
		}
		r.set(id, now, keep)
		return now, nil
	})
}

func (r *recent[T]) peek(id string) (reading[T], bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	v, ok := r.last[id]
	return v, ok
}

// set asks keep under the lock: who forgets an object has removed it before.
func (r *recent[T]) set(id string, v reading[T], keep func(id string) bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !keep(id) {
		return
	}
	if r.last == nil {
		r.last = map[string]reading[T]{}
	}
	r.last[id] = v
}

// forget is called once keep disowns id.
func (r *recent[T]) forget(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.last, id)
}

// Package batch coalesces concurrent requests for the same work into one run.
package batch

import "sync"

// Batches coalesces concurrent requests into one run of Work, for work that costs the same for one
// request and for many: syncing a disk, writing the index. A request that arrives during a run
// waits for the next one.
type Batches[T any] struct {
	Work func([]T) error

	mu      sync.Mutex
	busy    bool
	waiting []*waiter[T]
}

type waiter[T any] struct {
	item T
	lead chan bool // true: do the next batch; false: it is done
	err  error     // set before lead is sent false
}

// Do returns when a batch with the item is done.
func (b *Batches[T]) Do(item T) error {
	w := &waiter[T]{item: item, lead: make(chan bool, 1)}
	b.mu.Lock()
	b.waiting = append(b.waiting, w)
	if !b.busy {
		b.busy = true
		w.lead <- true
	}
	b.mu.Unlock()
	if !<-w.lead {
		return w.err
	}
	b.mu.Lock()
	batch := b.waiting
	b.waiting = nil
	b.mu.Unlock()
	items := make([]T, len(batch))
	for i, w := range batch {
		items[i] = w.item
	}
	err := b.Work(items)
	for _, other := range batch {
		if other != w {
			other.err = err
			other.lead <- false
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.waiting) > 0 {
		b.waiting[0].lead <- true
	} else {
		b.busy = false
	}
	return err
}

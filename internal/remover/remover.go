// Package remover deletes trees in the background, and repeats failed deletions. Listing a
// directory takes a descriptor, so a process without free descriptors cannot delete for a moment.
package remover

import (
	"log/slog"
	"os"
	"sync"
	"time"
)

// A failed deletion is repeated after firstPause, then after twice as long each time, up to
// lastPause. mostTries take a good eight hours.
const (
	firstPause = 100 * time.Millisecond
	lastPause  = 5 * time.Minute
	mostTries  = 100
)

// Remover deletes trees. Its methods may be called concurrently. It has no goroutine and no timer
// while nothing fails.
type Remover struct {
	log    *slog.Logger
	delete func(path string) error // os.RemoveAll, except in tests

	mu     sync.Mutex
	left   map[*tree]struct{} // to be tried again
	closed bool
	trying sync.WaitGroup // calls started by timers; Add is called with mu held
}

// tree is a path that could not be deleted.
type tree struct {
	path  string
	tries int
	pause time.Duration // before the next
	timer *time.Timer   // guarded by Remover.mu
}

// New makes a Remover that logs failed deletions.
func New(log *slog.Logger) *Remover {
	return &Remover{log: log, delete: os.RemoveAll, left: map[*tree]struct{}{}}
}

// Remove deletes a path with everything in it. It repeats a failed deletion in the background,
// until Close. The caller must not use the path again.
func (r *Remover) Remove(path string) {
	err := r.delete(path)
	if err == nil {
		return
	}
	r.log.Warn("cannot delete files; trying again later", "path", path, "err", err)
	r.later(&tree{path: path, tries: 1, pause: firstPause})
}

func (r *Remover) later(t *tree) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return
	}
	r.left[t] = struct{}{}
	t.timer = time.AfterFunc(t.pause, func() { r.again(t) })
}

func (r *Remover) again(t *tree) {
	if !r.take(t) {
		return
	}
	defer r.trying.Done()
	err := r.delete(t.path)
	t.tries++
	t.pause = min(2*t.pause, lastPause)
	switch {
	case err == nil:
	case t.tries == mostTries:
		r.log.Error("cannot delete files; giving up", "path", t.path, "tries", t.tries, "err", err)
	default:
		r.later(t)
	}
}

// take reports whether a tree must still be deleted.
func (r *Remover) take(t *tree) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.left[t]; !ok {
		return false
	}
	delete(r.left, t)
	r.trying.Add(1)
	return true
}

// Close ends the retries, and waits for calls in progress. What is not deleted stays. After Close,
// Remove tries only once.
func (r *Remover) Close() {
	r.mu.Lock()
	r.closed = true
	for t := range r.left {
		t.timer.Stop()
	}
	clear(r.left)
	r.mu.Unlock()
	r.trying.Wait()
}

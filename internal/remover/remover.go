// Package remover deletes trees that no one waits for, and tries again what cannot be deleted yet. To
// list a directory takes a descriptor, so a process that has none left for a moment cannot delete.
package remover

import (
	"log/slog"
	"os"
	"sync"
	"time"
)

// A failed deletion is tried again after firstPause, then twice as late each time up to lastPause:
// mostTries are a good eight hours.
const (
	firstPause = 100 * time.Millisecond
	lastPause  = 5 * time.Minute
	mostTries  = 100
)

// Remover deletes trees. Its methods may be called concurrently. It has no goroutine and no timer as
// long as nothing fails.
type Remover struct {
	log    *slog.Logger
	delete func(path string) error // os.RemoveAll, but in tests

	mu     sync.Mutex
	left   map[*tree]struct{} // to be tried again
	closed bool
	trying sync.WaitGroup // what timers have started; Add is called with mu held
}

// tree is what could not be deleted.
type tree struct {
	path  string
	tries int
	pause time.Duration // before the next
	timer *time.Timer   // guarded by Remover.mu
}

// New makes a Remover that logs what it has to try again.
func New(log *slog.Logger) *Remover {
	return &Remover{log: log, delete: os.RemoveAll, left: map[*tree]struct{}{}}
}

// Remove deletes a path with everything in it. What fails is tried again in the background, until
// Close. The caller must not use the path again.
func (r *Remover) Remove(path string) {
	err := r.delete(path)
	if err == nil {
		return
	}
	r.log.Warn("cannot delete, trying again later", "path", path, "err", err)
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
		r.log.Error("cannot delete, giving up", "path", t.path, "tries", t.tries, "err", err)
	default:
		r.later(t)
	}
}

// take says whether a tree is still to be tried.
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

// Close ends the tries, and waits for those under way. What is left stays; Remove tries once from then on.
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

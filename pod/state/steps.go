package state

import (
	"sync"
	"time"

	"github.com/coracle-project/coracle/runtime"
)

// Step is a part of making a pod, or of making and starting a container. Steps are always recorded:
// each costs two readings of the clock, and all of them are written with a record that is written
// anyway.
type Step = runtime.Step

// Stopwatch takes steps, of several goroutines too.
type Stopwatch struct {
	mu    sync.Mutex
	steps []Step
}

// Step notes one that began then and ends now, which it returns.
func (w *Stopwatch) Step(what string, began time.Time) (now time.Time) {
	now = time.Now()
	w.Between(what, began, now)
	return now
}

// Between notes one that began then and ended then.
func (w *Stopwatch) Between(what string, began, ended time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.steps = append(w.steps, Step{What: what, Began: began, Took: ended.Sub(began)})
}

// All are the steps so far, after those before.
func (w *Stopwatch) All(before []Step) []Step {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append(append([]Step(nil), before...), w.steps...)
}

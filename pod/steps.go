package pod

import (
	"sync"
	"time"
)

// Step is a part of making a pod, or of making and starting a container. Steps are always recorded:
// each costs two readings of the clock, and all of them are written with a record that is written
// anyway.
type Step struct {
	What  string        `json:"what"`
	Began time.Time     `json:"began"`
	Took  time.Duration `json:"took"` // ns
}

// stopwatch takes steps, of several goroutines too.
type stopwatch struct {
	mu    sync.Mutex
	steps []Step
}

// step notes one that began then and ends now, which it returns.
func (w *stopwatch) step(what string, began time.Time) (now time.Time) {
	now = time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.steps = append(w.steps, Step{what, began, now.Sub(began)})
	return now
}

// all are the steps so far, after those before.
func (w *stopwatch) all(before []Step) []Step {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append(append([]Step(nil), before...), w.steps...)
}

// Package watch tells watchers what becomes of pods and containers.
package watch

import (
	"sync"
	"time"

	"github.com/coracle-project/coracle/pod/state"
)

// EventKind says what has become of a pod or container.
type EventKind int

// A pod has all four, too: created and started as soon as it is ready, stopped when it
// is not any more, deleted when it is reported as removed.
const (
	EventCreated EventKind = iota
	EventStarted
	EventStopped
	EventDeleted
)

// Event is one change in the life of a pod or container. A receiver sees what it
// tells in what Pod and Container return, or something newer.
type Event struct {
	Kind EventKind
	// ID is the container's, or the pod's own.
	ID    string
	PodID string
	At    time.Time
}

// maxBehind is how many events a watcher may leave unread; then it has lost its place
// and has to begin with a List again.
const maxBehind = 4096

// Watchers get all events. Nothing is ever waited for under its lock. The zero value has none.
type Watchers struct {
	mu    sync.Mutex
	open  map[chan Event]struct{}
	ended bool
}

// Watch returns the events from now on, in order for each object. The channel is closed by stop, by
// End, and when the caller reads too slowly.
func (w *Watchers) Watch() (events <-chan Event, stop func()) {
	c := make(chan Event, maxBehind)
	w.add(c)
	return c, func() { w.drop(c) }
}

func (w *Watchers) add(c chan Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended {
		close(c)
		return
	}
	if w.open == nil {
		w.open = map[chan Event]struct{}{}
	}
	w.open[c] = struct{}{}
}

// drop closes c, once.
func (w *Watchers) drop(c chan Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, ok := w.open[c]; ok {
		delete(w.open, c)
		close(c)
	}
}

// End closes all, now and later.
func (w *Watchers) End() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended = true
	for c := range w.open {
		close(c)
	}
	w.open = nil
}

// tell hands kinds to all watchers. One that is full is closed.
func (w *Watchers) tell(id, podID string, kinds ...EventKind) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.open) == 0 {
		return
	}
	at := time.Now()
	for c := range w.open {
		for _, kind := range kinds {
			select {
			case c <- Event{Kind: kind, ID: id, PodID: podID, At: at}:
				continue
			default:
			}
			delete(w.open, c)
			close(c)
			break
		}
	}
}

// PodChanged tells the watchers what a new record means to them.
func (w *Watchers) PodChanged(before, after *state.PodRecord) {
	ready := func(r *state.PodRecord) bool { return r.Phase == state.PodReady }
	switch {
	case !ready(before) && ready(after):
		w.tell(after.ID, after.ID, EventCreated, EventStarted)
	case ready(before) && !ready(after):
		w.tell(after.ID, after.ID, EventStopped)
	}
	if before.Visible() && !after.Visible() {
		w.tell(after.ID, after.ID, EventDeleted)
	}
}

// ContainerChanged tells the watchers what a new record means to them.
func (w *Watchers) ContainerChanged(before, after *state.ContainerRecord) {
	switch {
	case before.Phase == after.Phase:
	case after.Phase == state.ContainerCreated && before.Phase == state.ContainerMaking:
		w.tell(after.ID, after.PodID, EventCreated)
	case after.Phase == state.ContainerRunning:
		w.tell(after.ID, after.PodID, EventStarted)
	case after.Phase == state.ContainerExited && before.Phase == state.ContainerStarting && after.Reason != state.StartError:
		// It ended before its start was recorded.
		w.tell(after.ID, after.PodID, EventStarted, EventStopped)
	case after.Phase == state.ContainerExited:
		w.tell(after.ID, after.PodID, EventStopped)
	case before.Visible() && !after.Visible():
		w.tell(after.ID, after.PodID, EventDeleted)
	}
}

package main

import (
	"runtime"
	"runtime/debug"
	"time"
)

const (
	// busyPercent is gcPercent while there is much to do: a quarter of the processor's time would go into
	// collecting else.
	busyPercent = 200
	// soon and late are between two collections: so soon after the last one there is much to do, and so
	// late nothing.
	soon = 500 * time.Millisecond
	late = 5 * time.Second
)

// pacer trades memory for time while collections follow each other, and takes the memory back later. It
// is told of a collection by a finalizer, so it wakes nobody.
type pacer struct {
	last time.Time
	busy bool
	set  func(percent int)
}

// paceCollector starts one that never ends.
func paceCollector() {
	p := &pacer{last: time.Now(), set: func(percent int) { debug.SetGCPercent(percent) }}
	p.await()
}

// await waits for the next collection: it takes an object that nothing refers to.
func (p *pacer) await() {
	type mark struct{ p *pacer } // with a pointer, or it would share its memory with other small things
	runtime.SetFinalizer(&mark{p}, func(m *mark) {
		m.p.collected(time.Now())
		m.p.await()
	})
}

// collected is called after each collection.
func (p *pacer) collected(now time.Time) {
	gap := now.Sub(p.last)
	p.last = now
	switch {
	case !p.busy && gap < soon:
		p.busy = true
		p.set(busyPercent)
	case p.busy && gap > late:
		p.busy = false
		p.set(gcPercent)
	}
}

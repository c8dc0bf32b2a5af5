package main

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// busyPercent is gcPercent while there is much to do: a quarter of the processor's time would
	// go into collecting else.
	busyPercent = 200
	// busyRoom bounds the garbage that this lets a large heap gather, down to gcPercent. Memory for
	// what Go keeps about its heap, 4 % of the largest there has been, is never given back. Pages that
	// a few live objects share with much garbage are not given back either.
	//
	// With 5,000 pods and two processors, 80 MB and at least 40 % made collections take a quarter of
	// the process's time, and an eighth fewer pods were bound; 160 MB and 80 % had no more bound.
	busyRoom = 120 << 20
	// largeHeap is what is in use with some 30,000 pods. A machine for such a cluster has memory, so
	// the garbage may take one part in largeShare of all that there is, up to largePercent of what
	// is in use. With 100,000 pods, 100 % were 556 pods/s and 3.6 GB, 140 % 603 and 4.8 GB; this lies
	// between. What is made while a collection runs counts as in use until the next one.
	largeHeap    = 512 << 20
	largeShare   = 4
	largePercent = 120
	// idlePercent is gcPercent while next to nothing happens: what is collected later would only
	// lie there.
	idlePercent = 30
	// step is what percentages are rounded down to: to set one stops the world.
	step = 20
	// soon, late and idle are between two collections: so soon after the last one there is much to
	// do, so late little, and after idle next to nothing. With more than smallHeap in use, soon and
	// late are as much longer, as there is more to fill; at most slowest times, since a collection
	// comes every two minutes in any case.
	soon      = 500 * time.Millisecond
	late      = 5 * time.Second
	idle      = 30 * time.Second
	smallHeap = 128 << 20
	slowest   = 12
)

// pacer trades memory for time while collections follow each other, and takes the memory back
// later. It is told of a collection by a finalizer, so it wakes no one.
type pacer struct {
	set    func(percent int)
	pages  func(huge bool) error
	memory uint64 // that the machine has, in bytes

	mu      sync.Mutex
	last    time.Time
	rested  time.Time // when rest was called last
	busy    bool
	percent int
}

// paceCollector starts one that never ends.
func paceCollector() *pacer {
	p := &pacer{
		last: time.Now(), percent: gcPercent, set: func(percent int) { debug.SetGCPercent(percent) },
		pages: (&heapPages{settings: hugePages}).set,
	}
	var machine unix.Sysinfo_t
	if unix.Sysinfo(&machine) == nil {
		p.memory = machine.Totalram * uint64(machine.Unit)
	}
	p.await()
	return p
}

// await waits for the next collection: it takes an object that nothing refers to.
func (p *pacer) await() {
	type mark struct{ p *pacer } // with a pointer, or it would share its memory with other small things
	runtime.SetFinalizer(&mark{p}, func(m *mark) {
		m.p.collected(time.Now(), liveHeap())
		m.p.await()
	})
}

// liveHeap is what the last collection has found in use.
func liveHeap() uint64 {
	sample := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(sample)
	if sample[0].Value.Kind() != metrics.KindUint64 {
		return 0
	}
	return sample[0].Value.Uint64()
}

// collected is called after each collection, which has found so many bytes in use.
func (p *pacer) collected(now time.Time, live uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	gap := now.Sub(p.last)
	p.last = now
	if now.Sub(p.rested) < soon {
		return // one that was asked for
	}
	slower := time.Duration(min(max(live/smallHeap, 1), slowest))
	switch {
	case gap < slower*soon:
		p.busy = true
	case gap > slower*late:
		p.busy = false
	}
	percent := gcPercent
	switch {
	case p.busy:
		percent = p.whileBusy(live)
	case gap > idle:
		percent = idlePercent
	}
	p.setLocked(percent, live >= hugeHeap)
}

// rest is called when nothing is done any more, after collections that were asked for: that they
// follow each other says nothing.
func (p *pacer) rest(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rested, p.busy = now, false
	p.setLocked(idlePercent, false)
}

func (p *pacer) setLocked(percent int, large bool) {
	if percent != p.percent {
		p.percent = percent
		p.set(percent)
	}
	_ = p.pages(p.busy && large) // without them it is only slower
}

// whileBusy is the percentage for a heap of which so many bytes are in use.
func (p *pacer) whileBusy(live uint64) int {
	room, most := uint64(busyRoom), busyPercent
	if live >= largeHeap {
		room, most = p.memory/largeShare, largePercent
	}
	percent := int(room*100/max(live, 1)) / step * step
	return min(max(percent, gcPercent), most)
}

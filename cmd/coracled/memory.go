package main

import (
	"log/slog"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/coracle-project/coracle/internal/programpages"
)

const (
	// gcPercent trades a little CPU for memory: at 20 MB of live data the heap
	// peaks at 30 instead of 40.
	gcPercent = 50
	// memoryLimit is where the collector starts to work harder, not a wall.
	memoryLimit = 96 << 20
	// quiet is how long nothing must have been done before garbage is given back.
	quiet = 10 * time.Second
	// The program's pages that are not in use are given back once the start is over, and again only
	// after a long rest: those that a pod needs cost it a microsecond each when they come back.
	started = 30 * time.Second
	rest    = 10 * time.Minute
)

// memory gives what a burst of work leaves behind back to the kernel, once, when
// the burst is over. Nothing wakes it while nothing is done.
type memory struct{ garbage, pages *time.Timer }

// limitMemory sets the collector's limits and starts with the burst that a start is.
func limitMemory(log *slog.Logger) *memory {
	debug.SetGCPercent(gcPercent)
	debug.SetMemoryLimit(memoryLimit)
	return newMemory(collect, func() { dropPages(log) })
}

// collect collects twice, because a sync.Pool keeps its buffers over one collection.
func collect() {
	runtime.GC()
	debug.FreeOSMemory()
}

func dropPages(log *slog.Logger) {
	if err := programpages.Drop(); err != nil {
		log.Debug("more of the program than it uses stays in memory", "err", err)
	}
}

func newMemory(collect, dropPages func()) *memory {
	return &memory{time.AfterFunc(quiet, collect), time.AfterFunc(started, dropPages)}
}

// worked puts the clean-up off.
func (m *memory) worked() {
	m.garbage.Reset(quiet)
	m.pages.Reset(rest)
}

func (m *memory) stop() {
	m.garbage.Stop()
	m.pages.Stop()
}

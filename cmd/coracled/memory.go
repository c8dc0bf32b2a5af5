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
	// memoryLimit is where the collector begins to work harder, not a wall.
	memoryLimit = 96 << 20
	// quiet is how long nothing must have been done before memory is given back.
	quiet = 10 * time.Second
)

// memory gives what a burst of work leaves behind back to the kernel, once, when
// the burst is over. Nothing wakes it while nothing is done.
type memory struct{ timer *time.Timer }

// limitMemory sets the collector's limits and begins with the burst that a start is.
func limitMemory() *memory {
	debug.SetGCPercent(gcPercent)
	debug.SetMemoryLimit(memoryLimit)
	return newMemory(giveBack)
}

// giveBack returns to the kernel what only the burst needed: of the heap, which is collected twice,
// because a sync.Pool keeps its buffers over one collection, and of the program, whose pages come
// back when they are used.
func giveBack() {
	runtime.GC()
	debug.FreeOSMemory()
	if err := programpages.Drop(); err != nil {
		slog.Debug("more of the program than it uses stays in memory", "error", err)
	}
}

func newMemory(free func()) *memory { return &memory{time.AfterFunc(quiet, free)} }

// worked puts the clean-up off.
func (m *memory) worked() { m.timer.Reset(quiet) }

func (m *memory) stop() { m.timer.Stop() }

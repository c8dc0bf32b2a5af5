package shim

import (
	"runtime"
	"runtime/debug"
	"sync"
	"time"
)

// memory gives freed memory back to the kernel some time after the last activity. It
// needs no periodic wake-up: the timer runs out once and is then idle.
type memory struct {
	mu    sync.Mutex
	timer *time.Timer
	last  time.Time
	ended bool
}

// giveBack collects twice, because a sync.Pool keeps its buffers over one collection.
func giveBack() {
	runtime.GC()
	debug.FreeOSMemory()
}

const memoryDelay = 2 * time.Second

// busy says that something happens now.
func (m *memory) busy() {
	now := time.Now()
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.ended, now.Sub(m.last) < memoryDelay/2:
		return
	case m.timer == nil:
		m.timer = time.AfterFunc(memoryDelay, giveBack)
	default:
		m.timer.Reset(memoryDelay)
	}
	m.last = now
}

func (m *memory) stop() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ended = true
	if m.timer != nil {
		m.timer.Stop()
	}
}

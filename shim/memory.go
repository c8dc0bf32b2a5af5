package shim

import (
	"log/slog"
	"runtime"
	"runtime/debug"
	"sync"
	"time"

	"github.com/coracle-project/coracle/internal/programpages"
)

const (
	// garbageDelay is after the last activity, pagesDelay after the last call: the next one waits a
	// microsecond for each page that it needs.
	garbageDelay = 2 * time.Second
	pagesDelay   = 30 * time.Second
)

// giveBack collects twice, because a sync.Pool keeps its buffers over one collection.
func giveBack() {
	runtime.GC()
	debug.FreeOSMemory()
}

// dropPages drops the program's pages that calls have used.
func dropPages() {
	if err := programpages.Drop(); err != nil {
		slog.Debug("more of the program than it uses stays in memory", "error", err)
	}
}

// afterwards does something once some time after the last activity. It needs no periodic wake-up:
// the timer runs out once and is then idle.
type afterwards struct {
	delay time.Duration
	do    func()

	mu    sync.Mutex
	timer *time.Timer
	last  time.Time
	ended bool
}

// busy says that something happens now.
func (a *afterwards) busy() {
	now := time.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.ended, now.Sub(a.last) < a.delay/2:
		return
	case a.timer == nil:
		a.timer = time.AfterFunc(a.delay, a.do)
	default:
		a.timer.Reset(a.delay)
	}
	a.last = now
}

func (a *afterwards) stop() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ended = true
	if a.timer != nil {
		a.timer.Stop()
	}
}

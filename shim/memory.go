package shim

import (
	"cmp"
	"log/slog"
	"runtime"
	"runtime/debug"
	"sync"
	"time"

	"github.com/coracle-project/coracle/internal/programpages"
)

const (
	// garbageDelay is after the last activity.
	garbageDelay = 2 * time.Second
	// The program's pages that are not in use are given back once the start is over, and again only
	// after a long rest: those that a call needs cost it a microsecond each when they come back.
	pagesStart = 30 * time.Second
	pagesDelay = 10 * time.Minute
)

// giveBack collects twice, because a sync.Pool keeps its buffers over one collection.
func giveBack() {
	runtime.GC()
	debug.FreeOSMemory()
}

// dropPages drops the program's pages that calls have used.
func dropPages(log *slog.Logger) {
	if err := programpages.Drop(); err != nil {
		log.Debug("more of the program than it uses stays in memory", "err", err)
	}
}

// afterwards does something once some time after the last activity. It needs no periodic wake-up:
// the timer runs out once and is then idle.
type afterwards struct {
	first time.Duration // after the first activity, if no other follows; 0: as later
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
		a.timer = time.AfterFunc(cmp.Or(a.first, a.delay), a.do)
		if a.first > 0 {
			return // the next one puts it off in any case
		}
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

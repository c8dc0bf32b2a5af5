package main

import (
	"context"
	"log/slog"
	"os"
	"runtime"
	"runtime/debug"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/internal/programpages"
)

const (
	// gcPercent lets the heap grow by this much of what is in use before garbage is collected. What
	// is in use is small (some 30 MB), so collecting more often costs little.
	gcPercent = 60
	// calm is how long after the start what only the start needed is given back, and how often it
	// is looked whether there is something to give back again.
	calm = 10 * time.Second
	// atRest is how much of a processor's time is used at most while next to nothing is done.
	atRest = 0.05
	// worth is how many bytes of pages have to have come for it to be worth a collection, which
	// takes some 50 ms of a processor. Of the program alone, up to 15 MB come back after each.
	worth = 32 << 20
)

// pace is nil if $GOGC is set, which wins.
var pace *pacer

// sparingly sets the collector for a process that is idle most of the time.
func sparingly() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
		pace = paceCollector()
	}
}

// restWhenCalm gives memory back that only the start needed, when the start is over, and what
// bursts of work have left, when they are over. Then one processor is enough, too.
func restWhenCalm(ctx context.Context, p *processors, log *slog.Logger) {
	tick := time.NewTicker(calm)
	defer tick.Stop()
	var l lull
	for {
		select {
		case <-tick.C:
			cpu, pages := used()
			busy := l.busy(cpu)
			if busy {
				p.useAll()
			} else {
				p.useOne()
			}
			if l.over(busy, pages) {
				trim(log)
				_, l.pages = used()
			}
		case <-ctx.Done():
			return
		}
	}
}

// trim gives back what is not in use: of the heap, which is collected twice, because a sync.Pool
// keeps its buffers over one collection, and of the program.
func trim(log *slog.Logger) {
	runtime.GC()
	debug.FreeOSMemory()
	if pace != nil {
		pace.rest(time.Now())
	}
	if err := programpages.Drop(); err != nil {
		log.Debug("more of the program than it uses stays in memory", "err", err)
	}
}

// used is how much processor time this process has used, and how many pages have come into its
// memory.
func used() (cpu time.Duration, pages int64) {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return 0, 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), u.Minflt + u.Majflt
}

// lull tells when there is something to give back.
type lull struct {
	began bool
	cpu   time.Duration // when it was looked last
	pages int64         // when memory was given back last
}

// busy says whether more than next to nothing was done since it was asked last. It is asked every
// calm.
func (l *lull) busy(cpu time.Duration) bool {
	busy := float64(cpu-l.cpu) > atRest*float64(calm)
	l.cpu = cpu
	return busy
}

// over says whether work is over that has left something worth giving back.
func (l *lull) over(busy bool, pages int64) bool {
	if !l.began { // what the start needed is worth it whatever is done
		l.began = true
		return true
	}
	return !busy && (pages-l.pages)*int64(os.Getpagesize()) >= worth
}

package main

import (
	"context"
	"log/slog"
	"os"
	"runtime/debug"
	"time"

	"github.com/coracle-project/coracle/internal/programpages"
)

const (
	// gcPercent lets the heap grow by this much of what is in use before garbage is collected. What
	// is in use is small (some 30 MB), so collecting more often costs little.
	gcPercent = 60
	// calm is how long after the start what only the start needed is given back.
	calm = 10 * time.Second
)

// sparingly sets the collector for a process that is idle most of the time; $GOGC wins.
func sparingly() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
		paceCollector()
	}
}

// trimWhenCalm gives memory back that only the start needed, when the start is over.
func trimWhenCalm(ctx context.Context) {
	select {
	case <-time.After(calm):
		debug.FreeOSMemory()
		if err := programpages.Drop(); err != nil {
			slog.Debug("more of the program than it uses stays in memory", "err", err)
		}
	case <-ctx.Done():
	}
}

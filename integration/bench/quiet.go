package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// The machine is quiet if in one window all its CPUs together were busy for less than this part
// of it: what a runtime does behind its answers, or anything else, is over.
const (
	quietWindow = 500 * time.Millisecond
	quietBusy   = 0.04
	// quietPatience is how long a runtime gets to come to rest between two turns.
	quietPatience = time.Minute
	// idlePatience is how long the machine gets before the first turn.
	idlePatience = 15 * time.Second
)

// errBusy ends a measurement that would have been another one's.
var errBusy = errors.New("the machine is busy")

// onBusyMachine is -busy: there is no waiting for other things to end.
var onBusyMachine bool

// quiet returns once the machine is quiet and what was written is on disk.
func quiet(ctx context.Context) error {
	if onBusyMachine {
		unix.Sync()
		return pause(ctx, settle)
	}
	return waitQuiet(ctx, quietPatience)
}

// idle refuses a machine on which other things run.
func idle(ctx context.Context) error {
	err := waitQuiet(ctx, idlePatience)
	if errors.Is(err, errBusy) {
		return fmt.Errorf("%w: end what runs beside the benchmark, or use -busy to measure nevertheless", err)
	}
	return err
}

func waitQuiet(ctx context.Context, patience time.Duration) error {
	unix.Sync()
	deadline := time.Now().Add(patience)
	for {
		before, err := busyTime()
		if err != nil {
			return err
		}
		began := time.Now()
		if err := pause(ctx, quietWindow); err != nil {
			return err
		}
		after, err := busyTime()
		if err != nil {
			return err
		}
		busy := (after - before).Seconds() / time.Since(began).Seconds() / float64(cpus)
		if busy < quietBusy {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%w: for %s it has not been below %.0f %% of its CPU time, now %.0f %%", errBusy, patience, 100*quietBusy, 100*busy)
		}
	}
}

// busyTime is how long all CPUs together have run anything (proc_stat(5): all but idle and iowait).
func busyTime() (time.Duration, error) {
	raw, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	first, _, _ := bytes.Cut(raw, []byte("\n"))
	fields := strings.Fields(string(first))
	if len(fields) < 9 {
		return 0, fmt.Errorf("/proc/stat begins with %q", first)
	}
	var ticks int64
	for i, f := range fields[1:9] { // guest time is in user time
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("/proc/stat: %w", err)
		}
		if i != 3 && i != 4 {
			ticks += n
		}
	}
	return time.Duration(ticks) * (time.Second / 100), nil // USER_HZ, the same on every architecture
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

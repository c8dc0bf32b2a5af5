// Package quiet waits until a machine does nothing, so that a benchmark measures nothing else's
// work.
package quiet

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

// The machine is quiet if in one Window all its CPUs together were busy for less than Busy times as
// long: what a program does behind its answers, or anything else, is over. The limit does not grow
// with the number of CPUs, as one busy thread does not.
const (
	Window = 500 * time.Millisecond
	Busy   = 0.08
)

const (
	// patience is how long a program gets to come to rest between two turns.
	patience = time.Minute
	// idlePatience is how long the machine gets before the first turn.
	idlePatience = 15 * time.Second
	// settle is the wait on a machine that is busy with other things.
	settle = 3 * time.Second
)

// errBusy ends a measurement that would have been another one's.
var errBusy = errors.New("the machine is busy")

// OnBusyMachine says that there is no waiting for other things to end.
var OnBusyMachine bool

// Wait returns once the machine is quiet and what was written is on disk.
func Wait(ctx context.Context) error {
	if OnBusyMachine {
		unix.Sync()
		return Pause(ctx, settle)
	}
	_, err := wait(ctx, patience, Busy)
	return err
}

// Rest is Wait for a machine that something to be measured keeps busy: it returns how many CPUs
// were in use at last, and no error if those were more than Busy.
func Rest(ctx context.Context) (inUse float64, err error) {
	inUse, err = wait(ctx, patience, Busy)
	if errors.Is(err, errBusy) {
		err = nil
	}
	return inUse, err
}

// Below is Wait with another limit than Busy.
func Below(ctx context.Context, limit float64) error {
	if OnBusyMachine {
		return Wait(ctx)
	}
	_, err := wait(ctx, patience, limit)
	return err
}

// Require refuses a machine on which other things run, unless OnBusyMachine.
func Require(ctx context.Context) error {
	if OnBusyMachine {
		return nil
	}
	_, err := wait(ctx, idlePatience, Busy)
	if errors.Is(err, errBusy) {
		return fmt.Errorf("%w: stop the other processes, or measure nevertheless with -busy", err)
	}
	return err
}

// wait returns how many CPUs were in use in the last Window.
func wait(ctx context.Context, patience time.Duration, limit float64) (inUse float64, err error) {
	unix.Sync()
	deadline := time.Now().Add(patience)
	for {
		before, err := busyTime()
		if err != nil {
			return 0, err
		}
		began := time.Now()
		if err := Pause(ctx, Window); err != nil {
			return 0, err
		}
		after, err := busyTime()
		if err != nil {
			return 0, err
		}
		inUse := (after - before).Seconds() / time.Since(began).Seconds()
		if inUse < limit {
			return inUse, nil
		}
		if time.Now().After(deadline) {
			return inUse, fmt.Errorf("%w: for %s more than %.2f of its CPUs have been in use, now %.2f", errBusy, patience, limit, inUse)
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

// Pause waits for d, or until ctx ends, whose error it returns then.
func Pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

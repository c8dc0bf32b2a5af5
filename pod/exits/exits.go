// Package exits knows how containers and pods' inits end: it ends them, and wakes who waits for it.
package exits

import (
	"context"
	"errors"
	"sync"
	"syscall"
	"time"

	"github.com/coracle-project/coracle/pod/errdefs"
	"github.com/coracle-project/coracle/pod/life"
	"github.com/coracle-project/coracle/shim/client"
)

// Shim ends containers.
type Shim interface {
	Kill(ctx context.Context, r client.KillRequest) error
	Delete(ctx context.Context, podID, id string) error
}

// Tracker lets operations wait for the end of a container's or pod's init without polling. An
// object that no one waits for costs nothing.
type Tracker struct {
	shim Shim
	ops  *life.Joined

	mu      sync.Mutex
	waiting map[string]chan struct{}
}

// New makes a Tracker whose calls to the shim end with the life.
func New(shim Shim, l *life.Life) *Tracker {
	return &Tracker{shim: shim, ops: life.NewJoined(l), waiting: map[string]chan struct{}{}}
}

// Of returns a channel that is closed once id has ended. over says whether it has
// already; it is asked under the lock that Happened takes, so no end is missed.
func (x *Tracker) Of(id string, over func() bool) <-chan struct{} {
	x.mu.Lock()
	defer x.mu.Unlock()
	if over() {
		c := make(chan struct{})
		close(c)
		return c
	}
	c, ok := x.waiting[id]
	if !ok {
		c = make(chan struct{})
		x.waiting[id] = c
	}
	return c
}

// Happened wakes all that wait for the end of id; over is true from now on.
func (x *Tracker) Happened(id string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if c, ok := x.waiting[id]; ok {
		close(c)
		delete(x.waiting, id)
	}
}

// Forget frees what the shim holds of a container that is not running; calls at the
// same time join.
func (x *Tracker) Forget(ctx context.Context, podID, id string) error {
	return x.ops.Do(ctx, "forget/"+id, life.CleanupLimit, func(ctx context.Context) error {
		err := x.shim.Delete(ctx, podID, id)
		if errors.Is(err, client.ErrNotFound) {
			return nil
		}
		return err
	})
}

// End has the shim free a container in whatever state it is, killing it first if it
// runs. It succeeds if the shim does not know it.
func (x *Tracker) End(ctx context.Context, podID, id string) error {
	err := x.Forget(ctx, podID, id)
	if !errors.Is(err, client.ErrRunning) {
		return err
	}
	over := x.Of(id, func() bool { return false })
	err = x.shim.Kill(ctx, client.KillRequest{PodID: podID, ID: id, Signal: syscall.SIGKILL, All: true})
	switch {
	case errors.Is(err, client.ErrNotFound), errors.Is(err, client.ErrNotRunning):
		x.Happened(id) // ended in between
	case err != nil:
		return err
	}
	err = x.AwaitKilled(ctx, over, func() (ended bool, err error) {
		if err = x.Forget(ctx, podID, id); err == nil {
			x.Happened(id) // no event will come
		}
		return err == nil, ignoring(err, client.ErrRunning)
	})
	if err != nil {
		return err
	}
	return x.Forget(ctx, podID, id)
}

// AwaitKilled waits for the end after SIGKILL. A container whose record the shim could not read
// sends no event, so AwaitKilled also calls ask, with growing pauses.
func (x *Tracker) AwaitKilled(ctx context.Context, over <-chan struct{}, ask func() (ended bool, err error)) error {
	for pause := firstKilledAsk; ; pause = min(2*pause, lastKilledAsk) {
		t := time.NewTimer(pause)
		select {
		case <-over:
			t.Stop()
			return nil
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return errdefs.Errorf(context.DeadlineExceeded, "still alive after SIGKILL: %w", ctx.Err())
		}
		if ended, err := ask(); ended || err != nil {
			return err
		}
	}
}

const firstKilledAsk, lastKilledAsk = 250 * time.Millisecond, 30 * time.Second

// ignoring returns nil if err is of a kind.
func ignoring(err, kind error) error {
	if errors.Is(err, kind) {
		return nil
	}
	return err
}

// EndLeftover ends a container that an earlier daemon left in the shim.
func (x *Tracker) EndLeftover(ctx context.Context, podID, id string) error {
	ctx, cancel := context.WithTimeout(ctx, leftoverLimit)
	defer cancel()
	return x.End(ctx, podID, id)
}

// leftoverLimit is how long recovery waits for one container to die.
const leftoverLimit = 5 * time.Second

// UnknownCode is the exit code of a container whose end no one saw, as peers have it.
const UnknownCode = 255

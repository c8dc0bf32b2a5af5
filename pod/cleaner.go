package pod

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// cleaner does slow deletions in the background, so that no one waits for them. What
// a job has to do stands in a record: a job lost to a crash is queued again by recovery.
type cleaner struct {
	life *life
	log  *slog.Logger
	// One per job that may run at a time. Those that are tried again have places of their own: what
	// hangs, as a CNI plugin may for hours, holds up no job that has just come.
	first, again chan struct{}

	mu     sync.Mutex
	active int           // jobs queued or running, not those that wait to be tried again
	idle   chan struct{} // closed while active is 0
}

// cleaners is how many background deletions run at a time, for the first time or again: they mostly
// wait for the kernel's RCU, but each that runs competes with pods being started.
const cleaners = 8

// A failed deletion is tried again after firstRetry, then twice as late each time.
const (
	firstRetry = 100 * time.Millisecond
	lastRetry  = time.Minute
)

func newCleaner(l *life, log *slog.Logger) *cleaner {
	c := &cleaner{life: l, log: log, first: make(chan struct{}, cleaners), again: make(chan struct{}, cleaners), idle: make(chan struct{})}
	close(c.idle)
	return c
}

// queue has job run in the background until it succeeds or the life ends. job must be
// idempotent and bounded by its context.
func (c *cleaner) queue(what, id string, job func(context.Context) error) {
	c.enter()
	ok := c.life.start(func(ctx context.Context) {
		slots := c.first
		for wait := firstRetry; ; wait = min(2*wait, lastRetry) {
			err := c.try(ctx, slots, job)
			slots = c.again
			c.leave()
			if err == nil || ctx.Err() != nil {
				return
			}
			c.log.Warn("background clean-up failed, trying again", "what", what, "id", id, "in", wait, "err", err)
			t := time.NewTimer(wait)
			select {
			case <-t.C:
			case <-ctx.Done():
				t.Stop()
				return
			}
			c.enter()
		}
	})
	if !ok {
		c.leave()
	}
}

func (c *cleaner) try(ctx context.Context, slots chan struct{}, job func(context.Context) error) error {
	select {
	case slots <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-slots }()
	ctx, cancel := context.WithTimeout(ctx, cleanupLimit)
	defer cancel()
	return job(ctx)
}

func (c *cleaner) enter() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.active++; c.active == 1 {
		c.idle = make(chan struct{})
	}
}

func (c *cleaner) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.active--; c.active == 0 {
		close(c.idle)
	}
}

// drain waits until no job is queued or running, or ctx ends.
func (c *cleaner) drain(ctx context.Context) error {
	c.mu.Lock()
	idle := c.idle
	c.mu.Unlock()
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

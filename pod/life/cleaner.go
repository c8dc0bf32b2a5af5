package life

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// Cleaner does slow deletions in the background, so that no one waits for them. What
// a job has to do is in a record: a job lost to a crash is queued again by recovery.
type Cleaner struct {
	life *Life
	log  *slog.Logger
	// One per job that may run at a time. Those that are tried again have places of their own: what
	// hangs, as a CNI plugin may for hours, holds up no job that has just come.
	first, again chan struct{}

	mu     sync.Mutex
	active int           // jobs queued or running, not those that wait to be tried again
	idle   chan struct{} // closed while active is 0
}

// A failed deletion is tried again after firstRetry, then twice as late each time.
const (
	firstRetry = 100 * time.Millisecond
	lastRetry  = time.Minute
)

// NewCleaner returns a cleaner whose jobs run within the life. At most atATime first attempts, and
// at most atATime repeated ones, run at once.
func NewCleaner(l *Life, atATime int, log *slog.Logger) *Cleaner {
	c := &Cleaner{life: l, log: log, first: make(chan struct{}, atATime), again: make(chan struct{}, atATime), idle: make(chan struct{})}
	close(c.idle)
	return c
}

// Queue has job run in the background until it succeeds or the life ends. job must be
// idempotent and bounded by its context.
func (c *Cleaner) Queue(what, id string, job func(context.Context) error) {
	c.enter()
	ok := c.life.Start(func(ctx context.Context) {
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

func (c *Cleaner) try(ctx context.Context, slots chan struct{}, job func(context.Context) error) error {
	select {
	case slots <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-slots }()
	ctx, cancel := context.WithTimeout(ctx, CleanupLimit)
	defer cancel()
	return job(ctx)
}

func (c *Cleaner) enter() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.active++; c.active == 1 {
		c.idle = make(chan struct{})
	}
}

func (c *Cleaner) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.active--; c.active == 0 {
		close(c.idle)
	}
}

// Drain waits until no job is queued or running, or ctx ends.
func (c *Cleaner) Drain(ctx context.Context) error {
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

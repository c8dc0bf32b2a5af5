package main

import (
	"context"
	"log/slog"
)

// collector collects image garbage when it is poked. It wakes for nothing else.
type collector struct {
	wake chan struct{} // has room for one
	stop context.CancelFunc
	done chan struct{}
}

func newCollector() *collector { return &collector{wake: make(chan struct{}, 1)} }

// poke asks for a collection, also before start.
func (c *collector) poke() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// start starts to collect; close waits for the end of it.
func (c *collector) start(collect func(context.Context) error, log *slog.Logger) {
	ctx, stop := context.WithCancel(context.Background())
	c.stop, c.done = stop, make(chan struct{})
	go func() {
		defer close(c.done)
		for {
			select {
			case <-ctx.Done():
				return
			case <-c.wake:
			}
			if err := collect(ctx); err != nil && ctx.Err() == nil {
				// What is left is collected with the next removal or start.
				log.Warn("cannot collect image garbage", "error", err)
			}
		}
	}()
}

func (c *collector) close() error {
	c.stop()
	<-c.done
	return nil
}

package image

import (
	"context"
	"log/slog"
)

// Collector collects image garbage when it is poked. It wakes for nothing else.
type Collector struct {
	wake chan struct{} // has room for one
	stop context.CancelFunc
	done chan struct{}
}

// NewCollector returns a collector, which Start starts.
func NewCollector() *Collector { return &Collector{wake: make(chan struct{}, 1)} }

// Poke asks for a collection, also before Start.
func (c *Collector) Poke() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// Start starts to collect; Close waits for the end of it.
func (c *Collector) Start(collect func(context.Context) error, log *slog.Logger) {
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
				log.Warn("cannot collect image garbage", "err", err)
			}
		}
	}()
}

// Close ends the collecting, also what is under way. It follows Start.
func (c *Collector) Close() error {
	c.stop()
	<-c.done
	return nil
}

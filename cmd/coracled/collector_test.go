package main

import (
	"context"
	"errors"
	"log/slog"
	"testing"
)

func TestCollector(t *testing.T) {
	c := newCollector()
	c.poke() // before the start
	c.poke()
	collected := make(chan struct{})
	c.start(func(ctx context.Context) error {
		select {
		case collected <- struct{}{}:
			return errors.New("some layer")
		case <-ctx.Done():
			return ctx.Err()
		}
	}, slog.New(slog.DiscardHandler))
	<-collected
	c.poke() // an error ends nothing
	<-collected
	c.poke()
	_ = c.close() // cuts off what is under way
}

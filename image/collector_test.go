package image

import (
	"context"
	"errors"
	"log/slog"
	"testing"
)

func TestCollector(t *testing.T) {
	c := NewCollector()
	c.Poke() // before the start
	c.Poke()
	collected := make(chan struct{})
	c.Start(func(ctx context.Context) error {
		select {
		case collected <- struct{}{}:
			return errors.New("some layer")
		case <-ctx.Done():
			return ctx.Err()
		}
	}, slog.New(slog.DiscardHandler))
	<-collected
	c.Poke() // an error ends nothing
	<-collected
	c.Poke()
	_ = c.Close() // cuts off what is under way
}

package server

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"

	"github.com/opencontainers/go-digest"

	"github.com/coracle-project/coracle/image/lazy"
)

// Who waits for a layer is not told that it has gone when it is the process that ends.
func TestAwaitOverTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(nil, slog.New(slog.DiscardHandler))
		d := digest.FromString("layer")
		x := &shown{Layer: lazy.Layer{DiffID: d}, whole: make(chan struct{}), done: make(chan struct{})}
		s.layers["key"] = x
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		got := make(chan error, 1)
		go func() { got <- s.Await(ctx, d) }()
		s.Close()
		x.wrong = context.Canceled
		close(x.whole)
		synctest.Wait()
		select {
		case err := <-got:
			t.Errorf("it was told %v", err)
			return
		default:
		}
		cancel() // the connection breaks
		if err := <-got; errors.Is(err, lazy.ErrNotShown) {
			t.Error(err)
		}
	})
}

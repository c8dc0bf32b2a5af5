package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/coracle-project/coracle/image/unpack"
	"github.com/coracle-project/coracle/snapshot"
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

// Regression: verification gave up at the first EROFS layer that could not be mounted.
func TestArchiveOfDamagedLayer(t *testing.T) {
	root := t.TempDir()
	s := snapshot.New(snapshot.Config{Root: root, Driver: snapshot.EROFS})
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	w, err := s.NewLayer(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	d := digest.FromString("layer")
	if err := w.Commit(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	image := filepath.Join(root, "layers/sha256", d.Encoded(), "layer.erofs")
	if err := os.WriteFile(image, make([]byte, 8192), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := (layerStore{s}).Archive(t.Context(), d, io.Discard); !errors.Is(err, unpack.ErrDamaged) {
		t.Errorf("%v", err)
	}
}

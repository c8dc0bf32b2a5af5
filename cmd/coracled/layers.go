package main

import (
	"context"
	"log/slog"

	"github.com/opencontainers/go-digest"

	"github.com/coracle-project/coracle/image"
	"github.com/coracle-project/coracle/snapshot"
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

// start begins to collect; close waits for the end of it.
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

// layerStore lets the image store unpack into the snapshot store. Neither package
// knows the other.
type layerStore struct{ *snapshot.Store }

var _ image.LayerStore = layerStore{}

// NewLayer returns the store's layer as the interface that image/ wants.
func (s layerStore) NewLayer(ctx context.Context) (image.LayerWriter, error) {
	w, err := s.Store.NewLayer(ctx)
	if err != nil {
		return nil, err // a nil *LayerWriter would not be a nil interface
	}
	return w, nil
}

// usage is what one layer takes, for the image store's Usage.
func (s layerStore) usage(diffID digest.Digest) (bytes, inodes int64, err error) {
	u, err := s.LayerUsage(diffID)
	return u.Bytes, u.Inodes, err
}

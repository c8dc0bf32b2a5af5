package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"

	"github.com/opencontainers/go-digest"

	"github.com/coracle-project/coracle/cmd/coracled/snapshotters"
	"github.com/coracle-project/coracle/image"
	"github.com/coracle-project/coracle/image/unpack"
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

// layerStore lets the image store unpack into the snapshot store. Neither package
// knows the other.
type layerStore struct{ *snapshot.Store }

var (
	_ image.LayerStore    = layerStore{}
	_ image.LayerArchiver = layerStore{}
	_ image.Quarantiner   = layerStore{}
	_ image.CopyKeeper    = imageLayers{}
	_ image.UseTeller     = imageLayers{}
	_ image.Flusher       = imageLayers{}
)

// NewLayer returns the store's layer as the interface that image/ wants.
func (s layerStore) NewLayer(ctx context.Context) (image.LayerWriter, error) {
	w, err := s.Store.NewLayer(ctx)
	if err != nil {
		return nil, err // a nil *LayerWriter would not be a nil interface
	}
	return w, nil
}

// Markers are the snapshot driver's, in the words of unpack/.
func (s layerStore) Markers() unpack.Markers { return markers(s.Store) }

func markers(s *snapshot.Store) unpack.Markers {
	if s.Markers() == snapshot.FileMarkers {
		return unpack.FileMarkers
	}
	return unpack.OverlayMarkers
}

// Archive makes the archive that a layer was unpacked from, and tells whether it is that:
// unpack.ErrDamaged if not.
func (s layerStore) Archive(ctx context.Context, diffID digest.Digest, w io.Writer) (err error) {
	v, err := s.OpenLayer(ctx, diffID)
	if errors.Is(err, snapshot.ErrDamaged) {
		return fmt.Errorf("%w: %w", unpack.ErrDamaged, err)
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, v.Close()) }()
	return archive(ctx, diffID, v, v, w)
}

// archive makes a layer's archive of its files, or those of a copy, and the layer's recipe.
func archive(ctx context.Context, diffID digest.Digest, files, layer *snapshot.LayerView, w io.Writer) error {
	recipe, err := layer.Recipe()
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("layer %s: %w", diffID, unpack.ErrNoRecipe)
	}
	if err != nil {
		return err
	}
	defer recipe.Close()
	verified := diffID.Verifier()
	if err := unpack.Rebuild(ctx, recipe, files.Dir(), io.MultiWriter(w, verified)); err != nil {
		return fmt.Errorf("layer %s: %w", diffID, err)
	}
	if !verified.Verified() {
		return fmt.Errorf("layer %s: %w: its files have other content", diffID, unpack.ErrDamaged)
	}
	return nil
}

// imageLayers are the layers as the image store sees them: with their copies.
type imageLayers struct {
	layerStore
	stores *snapshotters.Stores
}

// RemoveLayer removes the copies, too.
func (l imageLayers) RemoveLayer(ctx context.Context, d digest.Digest) error {
	return l.stores.RemoveLayer(ctx, d)
}

// HasCopy says whether a handler's snapshotter has a copy of the layer.
func (l imageLayers) HasCopy(d digest.Digest) bool { return l.stores.HasCopy(d) }

// CheckCopies makes the layer's archive of each copy.
func (l imageLayers) CheckCopies(ctx context.Context, d digest.Digest) (err error) {
	layer, err := l.OpenLayer(ctx, d)
	if errors.Is(err, snapshot.ErrLayerMissing) {
		return nil // removed meanwhile, and its copies with it
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, layer.Close()) }()
	return l.stores.EachCopy(ctx, d, func(files *snapshot.LayerView) error { return archive(ctx, d, files, layer, io.Discard) })
}

// DropCopies takes copies out of use. They are made again for the next container that wants them.
func (l imageLayers) DropCopies(d digest.Digest) error { return l.stores.QuarantineCopies(d) }

// InUse says whether a container uses the layer or a copy.
func (l imageLayers) InUse(d digest.Digest) bool { return l.stores.InUse(d) }

// Flush waits until what was removed is off the disk.
func (l imageLayers) Flush(ctx context.Context) error { return l.stores.Flush(ctx) }

// usage is what one layer takes, for the image store's Usage.
func (l imageLayers) usage(diffID digest.Digest) (bytes, inodes int64, err error) {
	u, err := l.stores.LayerUsage(diffID)
	return u.Bytes, u.Inodes, err
}

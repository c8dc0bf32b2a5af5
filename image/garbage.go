package image

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/coracle-project/coracle/image/blobs"
	"github.com/coracle-project/coracle/image/catalog"
	"github.com/coracle-project/coracle/image/ledger"
)

// garbage removes blobs and layers that nothing needs. Pulls pin what they bring before the index
// names it, and leases keep what no image names.
type garbage struct {
	index  *catalog.Index
	ledger *ledger.Ledger
	blobs  *blobs.Store
	layers LayerInventory
	log    *slog.Logger

	// sweep is held (one element) while garbage is removed and while pins
	// change, so that a pull never finds a blob that is about to go.
	sweep chan struct{}
	pins  map[digest.Digest]int // guarded by sweep
}

func newGarbage(c *Config, x *catalog.Index, l *ledger.Ledger, b *blobs.Store) *garbage {
	return &garbage{index: x, ledger: l, blobs: b, layers: c.Layers, log: c.Log, sweep: make(chan struct{}, 1), pins: map[digest.Digest]int{}}
}

// lockSweep takes the right to change pins or remove garbage.
func (g *garbage) lockSweep(ctx context.Context) error {
	select {
	case g.sweep <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (g *garbage) unlockSweep() { <-g.sweep }

// pin keeps blobs and layers of a pull that no index entry names yet.
func (g *garbage) pin(ctx context.Context, digests []digest.Digest) error {
	if err := g.lockSweep(ctx); err != nil {
		return err
	}
	defer g.unlockSweep()
	for _, d := range digests {
		g.pins[d]++
	}
	return nil
}

// hold is pin for an image that leaves the store: release ends it.
func (g *garbage) hold(ctx context.Context, digests []digest.Digest) (release func() error, err error) {
	if err := g.pin(ctx, digests); err != nil {
		return nil, err
	}
	return func() error { return g.settle(ctx, digests, true) }, nil
}

func (g *garbage) unpin(ctx context.Context, digests []digest.Digest) error {
	if err := g.lockSweep(ctx); err != nil {
		return err
	}
	defer g.unlockSweep()
	for _, d := range digests {
		if g.pins[d]--; g.pins[d] <= 0 {
			delete(g.pins, d)
		}
	}
	return nil
}

// settle ends a pull: what it held is named by the index now, or is garbage.
func (g *garbage) settle(ctx context.Context, pins []digest.Digest, failed bool) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	if err := g.unpin(ctx, pins); err != nil {
		return err
	}
	if !failed {
		return nil
	}
	return g.collectAll(ctx)
}

// collectAll removes all garbage.
func (g *garbage) collectAll(ctx context.Context) error {
	all, err := g.allThere()
	if err != nil {
		return err
	}
	return g.sweepAll(ctx, all)
}

// sweepAll is sweepUp of all that there is: what the ledger knows of layers that are not there, for
// whatever reason, is forgotten.
func (g *garbage) sweepAll(ctx context.Context, all catalog.Needs) error {
	_, err := g.collect(ctx, all)
	return errors.Join(err, g.ledger.Forget(func(d digest.Digest) bool { return !g.layers.HasLayer(d) }))
}

// allThere is all that there is, needed or not.
func (g *garbage) allThere() (catalog.Needs, error) {
	files, err := os.ReadDir(g.blobs.Dir())
	if err != nil {
		return catalog.Needs{}, fmt.Errorf("collect blobs: %w", err)
	}
	all := catalog.NewNeeds()
	for _, f := range files {
		d := digest.NewDigestFromEncoded(digest.SHA256, f.Name())
		if d.Validate() != nil {
			g.log.Warn("unknown file among the image blobs left alone", "file", f.Name())
			continue
		}
		all.Blobs[d] = true
	}
	layers, err := g.layers.Layers()
	if err != nil {
		return catalog.Needs{}, fmt.Errorf("collect layers: %w", err)
	}
	for _, d := range layers {
		all.Layers[d] = true
	}
	return all, nil
}

// sweepUp removes of the candidates what nothing needs, and forgets what it was.
func (g *garbage) sweepUp(ctx context.Context, candidates catalog.Needs) error {
	removed, err := g.collect(ctx, candidates)
	if len(removed) == 0 {
		return err
	}
	return errors.Join(err, g.ledger.Forget(func(d digest.Digest) bool { return removed[d] && !g.layers.HasLayer(d) }))
}

// sweepBatch is how many things are looked at before those who wait for the sweep are let
// in: a pull starts within milliseconds however much garbage there is.
const sweepBatch = 32

// collect removes of the candidates what nothing needs, and returns the layers that it removed.
func (g *garbage) collect(ctx context.Context, candidates catalog.Needs) (removed map[digest.Digest]bool, err error) {
	removed = map[digest.Digest]bool{}
	blobs, layers := slices.Sorted(maps.Keys(candidates.Blobs)), slices.Sorted(maps.Keys(candidates.Layers))
	var errs []error
	for len(blobs)+len(layers) > 0 {
		n, m := min(len(blobs), sweepBatch), min(len(layers), sweepBatch)
		err := g.sweepSome(ctx, blobs[:n], layers[:m], removed)
		blobs, layers = blobs[n:], layers[m:]
		if err != nil {
			errs = append(errs, err)
		}
		if err := ctx.Err(); err != nil {
			return removed, err
		}
	}
	return removed, errors.Join(errs...)
}

// sweepSome is a batch of collect.
func (g *garbage) sweepSome(ctx context.Context, blobs, layers []digest.Digest, removed map[digest.Digest]bool) error {
	if err := g.lockSweep(ctx); err != nil {
		return err
	}
	defer g.unlockSweep()
	// The uses are read after the lock: a pull pins before it commits and
	// unpins after, so what it needs is in one or the other.
	kept, ended := g.ledger.Leased(time.Now())
	errs := []error{g.endLeases(ended)}
	for _, d := range blobs {
		if !kept[d] && g.pins[d] == 0 && !g.index.NeedsBlob(d) {
			errs = append(errs, g.blobs.Drop(d))
		}
	}
	for _, d := range layers {
		if kept[d] || g.pins[d] > 0 || g.index.NeedsLayer(d) {
			continue
		}
		if err := g.layers.RemoveLayer(ctx, d); err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			// Containers may run from it; the next collection tries again.
			g.log.Info("layer without image kept", "layer", d.String(), "cause", err)
			continue
		}
		removed[d] = true
	}
	return errors.Join(errs...)
}

// sizeOf is what of some blobs and layers is on disk, allocated bytes.
func (g *garbage) sizeOf(n catalog.Needs) (bytes int64) {
	bytes = g.blobs.Usage.Of(maps.Keys(n.Blobs))
	for d := range n.Layers {
		if u, err := g.layers.LayerUsage(d); err == nil {
			bytes += u.Bytes
		}
	}
	return bytes
}

// repairIndex writes the index again, with the images that are whole.
func (g *garbage) repairIndex(entries []catalog.Entry, damaged bool) error {
	if err := g.salvage(); err != nil {
		g.log.Warn("images have to be pulled again with all of their layers", "err", err)
	}
	return g.index.Repair(entries, damaged, g.log)
}

// takeAway takes names from the index and deletes what only they needed.
func (g *garbage) takeAway(ctx context.Context, what catalog.Removal) (Removed, error) {
	r, only, err := g.index.Untag(what)
	if err != nil {
		return Removed{}, fmt.Errorf("remove image %s: %w", what.Ref, err)
	}
	freed := g.sizeOf(only)
	if err := g.sweepUp(ctx, only); err != nil {
		return r, err
	}
	r.Bytes = freed - g.sizeOf(only)
	return r, nil
}

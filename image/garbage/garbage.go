// Package garbage removes blobs and unpacked layers that no image, pull under way or lease needs.
package garbage

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
	"github.com/coracle-project/coracle/snapshot"
)

// Layers is which layers there are, for garbage collection.
type Layers interface {
	HasLayer(diffID digest.Digest) bool
	// Layers lists all whole layers.
	Layers() ([]digest.Digest, error)
	// LayerUsage is what a layer takes on disk, from memory.
	LayerUsage(diffID digest.Digest) (snapshot.Usage, error)
	// RemoveLayer deletes a layer; it fails, changing nothing, if a snapshot uses it.
	RemoveLayer(ctx context.Context, diffID digest.Digest) error
}

// Sweeper removes blobs and layers that nothing needs. Pulls pin what they bring before the index
// names it, and leases keep what no image names.
type Sweeper struct {
	index  *catalog.Index
	ledger *ledger.Ledger
	blobs  *blobs.Store
	layers Layers
	log    *slog.Logger

	// sweep is held (one element) while garbage is removed and while pins
	// change, so that a pull never finds a blob that is about to go.
	sweep chan struct{}
	pins  map[digest.Digest]int // guarded by sweep
}

// New returns a sweeper. l has the leases.
func New(x *catalog.Index, l *ledger.Ledger, b *blobs.Store, layers Layers, log *slog.Logger) *Sweeper {
	return &Sweeper{index: x, ledger: l, blobs: b, layers: layers, log: log, sweep: make(chan struct{}, 1), pins: map[digest.Digest]int{}}
}

// lock takes the right to change pins or remove garbage.
func (s *Sweeper) lock(ctx context.Context) error {
	select {
	case s.sweep <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *Sweeper) unlock() { <-s.sweep }

// Pin keeps blobs and layers of a pull that no index entry names yet, until Settle.
func (s *Sweeper) Pin(ctx context.Context, digests []digest.Digest) error {
	if err := s.lock(ctx); err != nil {
		return err
	}
	defer s.unlock()
	for _, d := range digests {
		s.pins[d]++
	}
	return nil
}

// Hold is Pin for an image that leaves the store: release ends it.
func (s *Sweeper) Hold(ctx context.Context, digests []digest.Digest) (release func() error, err error) {
	if err := s.Pin(ctx, digests); err != nil {
		return nil, err
	}
	return func() error { return s.Settle(ctx, digests, true) }, nil
}

func (s *Sweeper) unpin(ctx context.Context, digests []digest.Digest) error {
	if err := s.lock(ctx); err != nil {
		return err
	}
	defer s.unlock()
	for _, d := range digests {
		if s.pins[d]--; s.pins[d] <= 0 {
			delete(s.pins, d)
		}
	}
	return nil
}

// settleTimeout bounds cleaning up after a pull whose call may have been cancelled.
const settleTimeout = time.Minute

// Settle ends a pull, or a repair without pins: what was held is named by the index now, or is
// garbage. It does not end with ctx.
func (s *Sweeper) Settle(ctx context.Context, pins []digest.Digest, failed bool) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTimeout)
	defer cancel()
	if err := s.unpin(ctx, pins); err != nil {
		return err
	}
	if !failed {
		return nil
	}
	return s.CollectAll(ctx)
}

// CollectAll removes all garbage.
func (s *Sweeper) CollectAll(ctx context.Context) error {
	all, err := s.allThere()
	if err != nil {
		return err
	}
	return s.sweepAll(ctx, all)
}

// CollectCounted is CollectAll that returns what it has deleted: allocated bytes.
func (s *Sweeper) CollectCounted(ctx context.Context) (freed int64, err error) {
	all, err := s.allThere()
	if err != nil {
		return 0, err
	}
	before := s.sizeOf(all)
	err = s.sweepAll(ctx, all)
	return before - s.sizeOf(all), err
}

// sweepAll is sweepUp of all that there is: what the ledger knows of layers that are not there, for
// whatever reason, is forgotten.
func (s *Sweeper) sweepAll(ctx context.Context, all catalog.Needs) error {
	_, err := s.collect(ctx, all)
	return errors.Join(err, s.ledger.Forget(func(d digest.Digest) bool { return !s.layers.HasLayer(d) }))
}

// allThere is all that there is, needed or not.
func (s *Sweeper) allThere() (catalog.Needs, error) {
	files, err := os.ReadDir(s.blobs.Dir())
	if err != nil {
		return catalog.Needs{}, fmt.Errorf("collect blobs: %w", err)
	}
	all := catalog.NewNeeds()
	for _, f := range files {
		d := digest.NewDigestFromEncoded(digest.SHA256, f.Name())
		if d.Validate() != nil {
			s.log.Warn("unknown file among the image blobs left alone", "file", f.Name())
			continue
		}
		all.Blobs[d] = true
	}
	layers, err := s.layers.Layers()
	if err != nil {
		return catalog.Needs{}, fmt.Errorf("collect layers: %w", err)
	}
	for _, d := range layers {
		all.Layers[d] = true
	}
	return all, nil
}

// sweepUp removes of the candidates what nothing needs, and forgets what it was.
func (s *Sweeper) sweepUp(ctx context.Context, candidates catalog.Needs) error {
	removed, err := s.collect(ctx, candidates)
	if len(removed) == 0 {
		return err
	}
	return errors.Join(err, s.ledger.Forget(func(d digest.Digest) bool { return removed[d] && !s.layers.HasLayer(d) }))
}

// sweepBatch is how many things are looked at before those who wait for the sweep are let
// in: a pull starts within milliseconds however much garbage there is.
const sweepBatch = 32

// collect removes of the candidates what nothing needs, and returns the layers that it removed.
func (s *Sweeper) collect(ctx context.Context, candidates catalog.Needs) (removed map[digest.Digest]bool, err error) {
	removed = map[digest.Digest]bool{}
	blobs, layers := slices.Sorted(maps.Keys(candidates.Blobs)), slices.Sorted(maps.Keys(candidates.Layers))
	var errs []error
	for len(blobs)+len(layers) > 0 {
		n, m := min(len(blobs), sweepBatch), min(len(layers), sweepBatch)
		err := s.sweepSome(ctx, blobs[:n], layers[:m], removed)
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
func (s *Sweeper) sweepSome(ctx context.Context, blobs, layers []digest.Digest, removed map[digest.Digest]bool) error {
	if err := s.lock(ctx); err != nil {
		return err
	}
	defer s.unlock()
	// The uses are read after the lock: a pull pins before it commits and
	// unpins after, so what it needs is in one or the other.
	kept, ended := s.ledger.Leased(time.Now())
	errs := []error{s.endLeases(ended)}
	for _, d := range blobs {
		if !kept[d] && s.pins[d] == 0 && !s.index.NeedsBlob(d) {
			errs = append(errs, s.blobs.Drop(d))
		}
	}
	for _, d := range layers {
		if kept[d] || s.pins[d] > 0 || s.index.NeedsLayer(d) {
			continue
		}
		if err := s.layers.RemoveLayer(ctx, d); err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			// Containers may run from it; the next collection tries again.
			s.log.Info("layer without image kept", "layer", d.String(), "cause", err)
			continue
		}
		removed[d] = true
	}
	return errors.Join(errs...)
}

// sizeOf is what of some blobs and layers is on disk, allocated bytes.
func (s *Sweeper) sizeOf(n catalog.Needs) (bytes int64) {
	bytes = s.blobs.Usage.Of(maps.Keys(n.Blobs))
	for d := range n.Layers {
		if u, err := s.layers.LayerUsage(d); err == nil {
			bytes += u.Bytes
		}
	}
	return bytes
}

// RepairIndex writes the index again, with the images that are whole.
func (s *Sweeper) RepairIndex(entries []catalog.Entry, damaged bool) error {
	if err := s.Salvage(); err != nil {
		s.log.Warn("images have to be pulled again with all of their layers", "err", err)
	}
	return s.index.Repair(entries, damaged, s.log)
}

// DropBlob removes a blob, whatever needs it: it is damaged.
func (s *Sweeper) DropBlob(ctx context.Context, d digest.Digest) error {
	if err := s.lock(ctx); err != nil {
		return err
	}
	defer s.unlock()
	return s.blobs.Drop(d)
}

// Remove takes names from the index and deletes what only they needed.
func (s *Sweeper) Remove(ctx context.Context, what catalog.Removal) (catalog.Removed, error) {
	r, only, err := s.index.Untag(what)
	if err != nil {
		return catalog.Removed{}, fmt.Errorf("remove image %s: %w", what.Ref, err)
	}
	freed := s.sizeOf(only)
	if err := s.sweepUp(ctx, only); err != nil {
		return r, err
	}
	r.Bytes = freed - s.sizeOf(only)
	return r, nil
}

package image

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/opencontainers/go-digest"
)

// lockSweep takes the right to change pins or remove garbage.
func (s *Store) lockSweep(ctx context.Context) error {
	select {
	case s.sweep <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *Store) unlockSweep() { <-s.sweep }

// pin keeps blobs and layers of a pull that no index entry names yet.
func (s *Store) pin(ctx context.Context, digests []digest.Digest) error {
	if err := s.lockSweep(ctx); err != nil {
		return err
	}
	defer s.unlockSweep()
	for _, d := range digests {
		s.pins[d]++
	}
	return nil
}

func (s *Store) unpin(ctx context.Context, digests []digest.Digest) error {
	if err := s.lockSweep(ctx); err != nil {
		return err
	}
	defer s.unlockSweep()
	for _, d := range digests {
		if s.pins[d]--; s.pins[d] <= 0 {
			delete(s.pins, d)
		}
	}
	return nil
}

// GC removes blobs and layers that no image, pull under way or lease needs.
// Layers that a snapshot uses stay; call GC again when the layer store says that
// one of them is free. Pulls go on meanwhile.
func (s *Store) GC(ctx context.Context) error {
	all, err := s.allThere()
	if err != nil {
		return err
	}
	return s.sweepAll(ctx, all)
}

// Collect is GC for whoever wants to know what it has deleted: allocated bytes.
func (s *Store) Collect(ctx context.Context) (freed int64, err error) {
	if err := s.begin(); err != nil {
		return 0, err
	}
	defer s.wg.Done()
	all, err := s.allThere()
	if err != nil {
		return 0, err
	}
	before := s.sizeOf(all)
	err = s.sweepAll(ctx, all)
	return before - s.sizeOf(all), err
}

// sweepAll is sweepUp of all that there is: what the ledger knows of layers that are not there, for whatever
// reason, is forgotten.
func (s *Store) sweepAll(ctx context.Context, all needs) error {
	_, err := s.collect(ctx, all)
	return errors.Join(err, s.ledger.Forget(func(d digest.Digest) bool { return !s.cfg.Layers.HasLayer(d) }))
}

// allThere is all that there is, needed or not.
func (s *Store) allThere() (needs, error) {
	files, err := os.ReadDir(s.layout.blobs())
	if err != nil {
		return needs{}, fmt.Errorf("collect blobs: %w", err)
	}
	all := newNeeds()
	for _, f := range files {
		d := digest.NewDigestFromEncoded(digest.SHA256, f.Name())
		if d.Validate() != nil {
			s.cfg.Log.Warn("unknown file among the image blobs left alone", "file", f.Name())
			continue
		}
		all.blobs[d] = true
	}
	layers, err := s.cfg.Layers.Layers()
	if err != nil {
		return needs{}, fmt.Errorf("collect layers: %w", err)
	}
	for _, d := range layers {
		all.layers[d] = true
	}
	return all, nil
}

// sweepUp removes of the candidates what nothing needs, and forgets what it was.
func (s *Store) sweepUp(ctx context.Context, candidates needs) error {
	removed, err := s.collect(ctx, candidates)
	if len(removed) == 0 {
		return err
	}
	return errors.Join(err, s.ledger.Forget(func(d digest.Digest) bool { return removed[d] && !s.cfg.Layers.HasLayer(d) }))
}

// sweepBatch is how many things are looked at before those who wait for the sweep are let
// in: a pull starts within milliseconds however much garbage there is.
const sweepBatch = 32

// collect removes of the candidates what nothing needs, and returns the layers that it removed.
func (s *Store) collect(ctx context.Context, candidates needs) (removed map[digest.Digest]bool, err error) {
	removed = map[digest.Digest]bool{}
	blobs, layers := slices.Sorted(maps.Keys(candidates.blobs)), slices.Sorted(maps.Keys(candidates.layers))
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
func (s *Store) sweepSome(ctx context.Context, blobs, layers []digest.Digest, removed map[digest.Digest]bool) error {
	if err := s.lockSweep(ctx); err != nil {
		return err
	}
	defer s.unlockSweep()
	// The uses are read after the lock: a pull pins before it commits and
	// unpins after, so what it needs is in one or the other.
	kept, ended := s.ledger.Leased(time.Now())
	errs := []error{s.endLeases(ended)}
	for _, d := range blobs {
		if !kept[d] && s.pins[d] == 0 && !s.index.uses.blob(d) {
			errs = append(errs, s.dropBlob(d))
		}
	}
	for _, d := range layers {
		if kept[d] || s.pins[d] > 0 || s.index.uses.layer(d) {
			continue
		}
		if err := s.cfg.Layers.RemoveLayer(ctx, d); err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			// Containers may run from it; the next collection tries again.
			s.cfg.Log.Info("layer without image kept", "layer", d.String(), "cause", err)
			continue
		}
		removed[d] = true
	}
	return errors.Join(errs...)
}

// dropBlob deletes a blob.
func (s *Store) dropBlob(d digest.Digest) error {
	if err := os.Remove(s.layout.blob(d)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("collect blobs: %w", err)
	}
	s.usage.remove(d)
	return nil
}

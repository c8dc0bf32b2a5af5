package image

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

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

// GC removes blobs and layers that neither an image nor a pull under way needs.
// Layers that a snapshot uses stay; call GC again when the layer store says that
// one of them is free.
func (s *Store) GC(ctx context.Context) error {
	if err := s.lockSweep(ctx); err != nil {
		return err
	}
	defer s.unlockSweep()
	// The catalog is read after the lock: a pull pins before it commits and
	// unpins after, so what it needs is in one or the other.
	blobs, layers := s.now.Load().reachable()
	return errors.Join(s.sweepBlobs(blobs), s.sweepLayers(ctx, layers))
}

func (s *Store) sweepBlobs(keep map[digest.Digest]bool) error {
	files, err := os.ReadDir(s.layout.blobs())
	if err != nil {
		return fmt.Errorf("collect blobs: %w", err)
	}
	var errs []error
	for _, f := range files {
		d := digest.NewDigestFromEncoded(digest.SHA256, f.Name())
		if keep[d] || s.pins[d] > 0 {
			continue
		}
		if d.Validate() != nil {
			s.cfg.Log.Warn("unknown file among the image blobs left alone", "file", f.Name())
			continue
		}
		if err := os.Remove(s.layout.blob(d)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("collect blobs: %w", err))
			continue
		}
		s.usage.remove(d)
	}
	return errors.Join(errs...)
}

func (s *Store) sweepLayers(ctx context.Context, keep map[digest.Digest]bool) error {
	layers, err := s.cfg.Layers.Layers()
	if err != nil {
		return fmt.Errorf("collect layers: %w", err)
	}
	for _, d := range layers {
		if keep[d] || s.pins[d] > 0 {
			continue
		}
		if err := s.cfg.Layers.RemoveLayer(ctx, d); err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			// Containers may run from it; the next collection tries again.
			s.cfg.Log.Info("layer without image kept", "layer", d.String(), "cause", err)
		}
	}
	return nil
}

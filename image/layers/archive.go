package layers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"

	"github.com/opencontainers/go-digest"

	"github.com/coracle-project/coracle/image"
	"github.com/coracle-project/coracle/image/unpack"
	"github.com/coracle-project/coracle/snapshot"
)

var _ image.LayerStore = (*Store)(nil)

// NewLayer makes a layer of the node's store.
func (s *Store) NewLayer(ctx context.Context) (image.LayerWriter, error) {
	w, err := s.cfg.Node.NewLayer(ctx)
	if err != nil {
		return nil, err // a nil *LayerWriter would not be a nil interface
	}
	return w, nil
}

// Markers say how layers are unpacked for the node's store.
func (s *Store) Markers() unpack.Markers { return markers(s.cfg.Node) }

// markers are those of a store's driver, in the words of unpack/.
func markers(s *snapshot.Store) unpack.Markers {
	if s.Markers() == snapshot.FileMarkers {
		return unpack.FileMarkers
	}
	return unpack.OverlayMarkers
}

// HasLayer says whether the node's store has a layer.
func (s *Store) HasLayer(d digest.Digest) bool { return s.cfg.Node.HasLayer(d) }

// Layers lists the layers of the node's store.
func (s *Store) Layers() ([]digest.Digest, error) { return s.cfg.Node.Layers() }

// Quarantine takes a damaged layer of the node's store out of use.
func (s *Store) Quarantine(d digest.Digest) error { return s.cfg.Node.Quarantine(d) }

// Archive makes the archive that a layer was unpacked from, and tells whether it is that:
// unpack.ErrDamaged if not.
func (s *Store) Archive(ctx context.Context, diffID digest.Digest, w io.Writer) (err error) {
	v, err := s.cfg.Node.OpenLayer(ctx, diffID)
	if errors.Is(err, snapshot.ErrDamaged) {
		return fmt.Errorf("%w: %w", unpack.ErrDamaged, err)
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, v.Close()) }()
	return archive(ctx, diffID, v, v, w)
}

// ArchiveSize is how many bytes Archive writes.
func (s *Store) ArchiveSize(ctx context.Context, diffID digest.Digest) (size int64, err error) {
	v, err := s.cfg.Node.OpenLayer(ctx, diffID)
	if errors.Is(err, snapshot.ErrDamaged) {
		return 0, fmt.Errorf("%w: %w", unpack.ErrDamaged, err)
	}
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, v.Close()) }()
	recipe, err := openRecipe(diffID, v)
	if err != nil {
		return 0, err
	}
	defer recipe.Close()
	if size, err = unpack.RebuiltSize(ctx, recipe); err != nil {
		return 0, fmt.Errorf("layer %s: %w", diffID, err)
	}
	return size, nil
}

func openRecipe(diffID digest.Digest, layer *snapshot.LayerView) (io.ReadCloser, error) {
	recipe, err := layer.Recipe()
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("layer %s: %w", diffID, unpack.ErrNoRecipe)
	}
	return recipe, err
}

// archive makes a layer's archive of its files, or those of a copy, and the layer's recipe.
func archive(ctx context.Context, diffID digest.Digest, files, layer *snapshot.LayerView, w io.Writer) error {
	recipe, err := openRecipe(diffID, layer)
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

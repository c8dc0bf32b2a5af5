package snapshot

import (
	"context"
	"os"

	"github.com/opencontainers/go-digest"
)

// What follows is what callers may do with the layers of a store; package layer does it.

// NewLayer makes an empty staging directory for one layer.
func (s *Store) NewLayer(ctx context.Context) (*LayerWriter, error) { return s.layers.NewLayer(ctx) }

// OpenLayer opens a layer to read it. ErrLayerMissing if it is not in the store, ErrDamaged if that
// shows already.
func (s *Store) OpenLayer(ctx context.Context, diffID digest.Digest) (*LayerView, error) {
	return s.layers.OpenLayer(ctx, diffID)
}

// HasLayer says whether the layer exists and is whole; a lazy one is not.
func (s *Store) HasLayer(diffID digest.Digest) bool { return s.layers.HasLayer(diffID) }

// InUse says whether a snapshot or a reader uses a layer.
func (s *Store) InUse(diffID digest.Digest) bool { return s.layers.InUse(diffID) }

// Layers lists all layers, lazy ones too, sorted.
func (s *Store) Layers() ([]digest.Digest, error) { return s.layers.Layers() }

// LayerUsage returns the usage that was measured when the layer was committed; of a lazy one, that
// of the parts downloaded so far.
func (s *Store) LayerUsage(diffID digest.Digest) (Usage, error) { return s.layers.LayerUsage(diffID) }

// RemoveLayer deletes a layer. It fails with ErrLayerInUse, changing nothing, if a snapshot uses it
// (Config.Freed tells when to try again). It is no error if the layer does not exist.
func (s *Store) RemoveLayer(ctx context.Context, diffID digest.Digest) error {
	return s.layers.RemoveLayer(ctx, diffID)
}

// Quarantine takes a damaged layer out of use: no snapshot can be prepared from it any more, and it
// can be committed again. Containers that run from it continue.
func (s *Store) Quarantine(diffID digest.Digest) error { return s.layers.Quarantine(diffID) }

// BeginLazy makes the directory of a lazy layer, with an empty one to mount it on (fs). CommitLazy
// or AbortLazy must follow. ErrLayerExists if the layer exists.
func (s *Store) BeginLazy(diffID digest.Digest) (dir string, err error) {
	return s.layers.BeginLazy(diffID)
}

// CommitLazy takes a layer into use that is mounted now. blob is the layer's archive, and toc the
// digest of the table of contents that it is shown by.
func (s *Store) CommitLazy(diffID, blob, toc digest.Digest) error {
	return s.layers.CommitLazy(diffID, blob, toc)
}

// AbortLazy undoes BeginLazy.
func (s *Store) AbortLazy(diffID digest.Digest) error { return s.layers.AbortLazy(diffID) }

// EndLazy removes the mount of a layer that is now unpacked or removed. It does not wait for roots
// that are made of it.
func (s *Store) EndLazy(diffID digest.Digest) error { return s.layers.EndLazy(diffID) }

// DropLazy takes all lazy layers out of use, because the process that shows them is about to end.
func (s *Store) DropLazy() error { return s.layers.DropLazy() }

// LazySource returns the archive of a lazy layer, and the digest of its table of contents; "" if
// the layer is unpacked or does not exist.
func (s *Store) LazySource(diffID digest.Digest) (blob, toc digest.Digest) {
	return s.layers.LazySource(diffID)
}

// OpenLazyBlob opens the downloaded parts of a lazy layer's archive.
func (s *Store) OpenLazyBlob(diffID digest.Digest) (*os.File, error) {
	return s.layers.OpenLazyBlob(diffID)
}

// LayerDir is the directory with an unpacked layer's files. It stays while a snapshot uses it.
func (s *Store) LayerDir(diffID digest.Digest) string { return s.layers.LayerDir(diffID) }

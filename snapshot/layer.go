package snapshot

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/internal/atomicfile"
	"github.com/coracle-project/coracle/internal/transient"
	"github.com/coracle-project/coracle/snapshot/space"

	"github.com/coracle-project/coracle/snapshot/driver"
)

// layerFile is the content of layer.json.
type layerFile struct {
	Version int           `json:"version"` // 1
	DiffID  digest.Digest `json:"diffID"`
	Bytes   int64         `json:"bytes"`
	Inodes  int64         `json:"inodes"`
}

// LayerWriter is one layer being unpacked. Exactly one of Commit and Abort ends it;
// Abort after Commit does nothing, so it can be deferred. It is not safe for
// concurrent use.
type LayerWriter struct {
	store *Store
	name  string // in staging
	done  bool
}

// NewLayer makes an empty staging directory for one layer.
func (s *Store) NewLayer(ctx context.Context) (*LayerWriter, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	w := &LayerWriter{store: s, name: newName()}
	if err := os.Mkdir(w.path(), 0o700); err != nil {
		return nil, fmt.Errorf("stage a layer: %w", err)
	}
	if err := faultLayerStaged.At(ctx); err != nil {
		return nil, errors.Join(err, w.Abort())
	}
	// 0755 is what an image without an entry for its root directory gets.
	if err := os.Mkdir(w.Dir(), 0o755); err != nil {
		return nil, errors.Join(fmt.Errorf("stage a layer: %w", err), w.Abort())
	}
	return w, nil
}

func newName() string { return rand.Text() }

func (w *LayerWriter) path() string { return filepath.Join(w.store.stagingDir(), w.name) }

// Dir is the directory to unpack into, with the markers that Store.Markers says.
func (w *LayerWriter) Dir() string { return driver.FilesIn(w.path()) }

// Commit gives the layer its final name. If another
// writer was faster the staged copy is dropped and Commit succeeds. On error the
// writer is as before and Abort ends it.
func (w *LayerWriter) Commit(ctx context.Context, diffID digest.Digest) error {
	if w.done {
		return fmt.Errorf("commit layer %s: writer has ended", diffID)
	}
	if err := checkDigest(diffID); err != nil {
		return err
	}
	if err := w.store.driver.Seal(ctx, w.path()); err != nil {
		return fmt.Errorf("commit layer %s: %w", diffID, err)
	}
	if err := faultLayerSealed.At(ctx); err != nil {
		return err
	}
	u, err := w.record(ctx, diffID)
	if err != nil {
		return fmt.Errorf("commit layer %s: %w", diffID, err)
	}
	if err := faultLayerRecorded.At(ctx); err != nil {
		return err
	}
	won, err := w.store.publish(w.path(), diffID, u)
	if err != nil {
		return err
	}
	if won {
		w.store.endQuarantine(diffID)
	} else {
		if err := w.Abort(); err != nil {
			return err
		}
	}
	w.done = true
	return faultLayerPublished.At(ctx)
}

// record writes layer.json with what the layer takes, itself included.
func (w *LayerWriter) record(ctx context.Context, diffID digest.Digest) (Usage, error) {
	path := filepath.Join(w.path(), "layer.json")
	f := layerFile{Version: 1, DiffID: diffID}
	for range 2 { // the second time with the file that is there
		data, err := json.Marshal(f)
		if err == nil {
			err = atomicfile.Write(path, data, 0o600)
		}
		if err != nil {
			return Usage{}, err
		}
		if f.Bytes > 0 {
			break
		}
		u, err := space.Measure(ctx, w.path())
		if err != nil {
			return Usage{}, err
		}
		f.Bytes, f.Inodes = u.Bytes, u.Inodes
	}
	return Usage{Bytes: f.Bytes, Inodes: f.Inodes}, nil
}

// publish renames a staged layer to its final name and reports whether it was the
// first under that name. It takes the place of a lazy one, with its users.
func (s *Store) publish(staged string, diffID digest.Digest, u Usage) (won bool, err error) {
	s.renames.Lock()
	defer s.renames.Unlock()
	if s.HasLayer(diffID) {
		return false, nil
	}
	err = unix.Renameat2(unix.AT_FDCWD, staged, unix.AT_FDCWD, s.layerDir(diffID), unix.RENAME_NOREPLACE)
	if err != nil {
		return false, fmt.Errorf("commit layer %s: %w", diffID, &os.LinkError{Op: "rename", Old: staged, New: s.layerDir(diffID), Err: err})
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.layers[diffID]; l != nil {
		l.usage, l.lazy = u, ""
		return true, nil
	}
	s.layers[diffID] = &layer{usage: u}
	return true, nil
}

// Recipe creates the file for how the layer's archive is made again, kept with the layer.
// The caller closes it before Commit.
func (w *LayerWriter) Recipe() (io.WriteCloser, error) {
	f, err := os.OpenFile(filepath.Join(w.path(), recipeName), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, fmt.Errorf("stage a layer: %w", err)
	}
	return f, nil
}

const recipeName = "recipe"

// Abort drops the layer. After Commit or a first Abort it does nothing.
func (w *LayerWriter) Abort() error {
	if w.done {
		return nil
	}
	w.done = true
	w.store.trash.Delete(w.name)
	return nil
}

// HasLayer reports whether the layer is there, whole; a lazy one is not.
func (s *Store) HasLayer(diffID digest.Digest) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.layers[diffID]
	return l != nil && l.lazy == ""
}

// InUse says whether a snapshot, or someone who reads it, uses a layer.
func (s *Store) InUse(diffID digest.Digest) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.layers[diffID]
	return l != nil && l.users > 0
}

// Layers lists all layers, lazy ones too, sorted.
func (s *Store) Layers() ([]digest.Digest, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.layers)), nil
}

// LayerUsage returns what the layer takes, as said when it was committed; of a lazy one, what has
// come by now.
func (s *Store) LayerUsage(diffID digest.Digest) (Usage, error) {
	if s.LazyBlob(diffID) != "" {
		return s.lazyUsage(diffID)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.layers[diffID]
	if l == nil {
		return Usage{}, fmt.Errorf("layer %s: %w", diffID, ErrLayerMissing)
	}
	return l.usage, nil
}

// RemoveLayer deletes a layer; it fails with ErrLayerInUse, changing nothing, if a
// snapshot uses it (Config.Freed tells when to try again). A layer that is not there
// is fine.
func (s *Store) RemoveLayer(ctx context.Context, diffID digest.Digest) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := checkDigest(diffID); err != nil {
		return err
	}
	s.renames.Lock()
	defer s.renames.Unlock()
	taken, err := s.forgetLayer(diffID)
	if err != nil || taken == nil {
		return err
	}
	if taken.lazy != "" {
		err = s.dropLazy(diffID)
	} else if err = s.driver.Free(s.layerDir(diffID)); err == nil {
		err = s.discard(s.layerDir(diffID))
	}
	if err != nil {
		s.mu.Lock()
		s.layers[diffID] = taken
		s.mu.Unlock()
		return fmt.Errorf("remove layer %s: %w", diffID, err)
	}
	return faultLayerRemoved.At(ctx)
}

// forgetLayer takes an unused layer from the index, so that no snapshot can begin
// to use it.
func (s *Store) forgetLayer(diffID digest.Digest) (*layer, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.layers[diffID]
	if l != nil && l.users > 0 {
		l.wanted = true
		return nil, fmt.Errorf("remove layer %s: %w (%d of them)", diffID, ErrLayerInUse, l.users)
	}
	delete(s.layers, diffID)
	return l, nil
}

// loadLayers reads the layers' records. Commit names no layer without one: where it cannot be
// read, the layer is damaged, but containers may run from it. What no layer is called is dropped.
func (s *Store) loadLayers() error {
	entries, err := os.ReadDir(s.layersDir())
	if err != nil {
		return fmt.Errorf("snapshot store: %w", err)
	}
	var w transient.Waits
	for _, e := range entries {
		d := digest.NewDigestFromEncoded(digest.SHA256, e.Name())
		u, err := transient.Try(&w, func() (Usage, error) { return s.readLayerFile(filepath.Join(s.layersDir(), e.Name()), d) })
		switch {
		case err == nil:
			s.layers[d] = &layer{usage: u}
		case transient.Scarce(err): // affects all layers, not only this one
			return fmt.Errorf("snapshot store: layer %s: %w", d, err)
		case checkDigest(d) == nil:
			s.log.Warn("a layer's record cannot be read", "layer", d.String(), "error", err)
			err = s.setAside(d)
		default:
			s.log.Warn("dropping what is no layer", "name", e.Name(), "error", err)
			err = s.discard(filepath.Join(s.layersDir(), e.Name()))
		}
		if err != nil { // the layer is not offered, which is what counts
			s.log.Warn("cannot remove damaged layer; it stays in place", "name", e.Name(), "err", err)
		}
	}
	return nil
}

func (s *Store) readLayerFile(dir string, d digest.Digest) (Usage, error) {
	if err := checkDigest(d); err != nil {
		return Usage{}, err
	}
	data, err := s.readFile(filepath.Join(dir, "layer.json"))
	if err != nil {
		return Usage{}, err
	}
	var f layerFile
	if err := json.Unmarshal(data, &f); err != nil {
		return Usage{}, fmt.Errorf("layer.json: %w", err)
	}
	if f.Version != 1 || f.DiffID != d {
		return Usage{}, fmt.Errorf("layer.json: version %d of %s", f.Version, f.DiffID)
	}
	return Usage{Bytes: f.Bytes, Inodes: f.Inodes}, nil
}

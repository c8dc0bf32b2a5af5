package layer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/opencontainers/go-digest"

	"github.com/coracle-project/coracle/internal/atomicfile"
	"github.com/coracle-project/coracle/snapshot/driver"
	"github.com/coracle-project/coracle/snapshot/space"
	"github.com/coracle-project/coracle/snapshot/trash"
)

// Writer is one layer being unpacked. Exactly one of Commit and Abort ends it;
// Abort after Commit does nothing, so it can be deferred. It is not safe for
// concurrent use.
type Writer struct {
	store *Store
	name  string // in staging
	done  bool
}

// NewLayer makes an empty staging directory for one layer.
func (s *Store) NewLayer(ctx context.Context) (*Writer, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	w := &Writer{store: s, name: trash.NewName()}
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

func (w *Writer) path() string { return filepath.Join(w.store.trash.Dir(), w.name) }

// Dir is the directory to unpack into, with the markers that snapshot.Store.Markers says.
func (w *Writer) Dir() string { return driver.FilesIn(w.path()) }

// Commit gives the layer its final name. If another
// writer was faster the staged copy is dropped and Commit succeeds. On error the
// writer is as before and Abort ends it.
func (w *Writer) Commit(ctx context.Context, diffID digest.Digest) error {
	if w.done {
		return fmt.Errorf("commit layer %s: writer has ended", diffID)
	}
	if err := Check(diffID); err != nil {
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
func (w *Writer) record(ctx context.Context, diffID digest.Digest) (space.Usage, error) {
	path := filepath.Join(w.path(), "layer.json")
	f := layerFile{Version: 1, DiffID: diffID}
	for range 2 { // the second time with the file that is there
		data, err := json.Marshal(f)
		if err == nil {
			err = atomicfile.Write(path, data, 0o600)
		}
		if err != nil {
			return space.Usage{}, err
		}
		if f.Bytes > 0 {
			break
		}
		u, err := space.Measure(ctx, w.path())
		if err != nil {
			return space.Usage{}, err
		}
		f.Bytes, f.Inodes = u.Bytes, u.Inodes
	}
	return space.Usage{Bytes: f.Bytes, Inodes: f.Inodes}, nil
}

// Recipe creates the file for how the layer's archive is made again, kept with the layer.
// The caller closes it before Commit.
func (w *Writer) Recipe() (io.WriteCloser, error) {
	f, err := os.OpenFile(filepath.Join(w.path(), recipeName), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, fmt.Errorf("stage a layer: %w", err)
	}
	return f, nil
}

const recipeName = "recipe"

// Abort drops the layer. After Commit or a first Abort it does nothing.
func (w *Writer) Abort() error {
	if w.done {
		return nil
	}
	w.done = true
	w.store.trash.Delete(w.name)
	return nil
}

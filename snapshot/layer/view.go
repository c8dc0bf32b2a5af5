package layer

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"

	"github.com/opencontainers/go-digest"
)

// View is a layer being read. It cannot be removed until Close.
type View struct {
	diffID  digest.Digest
	dir     string
	files   string
	release func()
}

// OpenLayer opens a layer to read it. ErrMissing if it is not in the store,
// driver.ErrDamaged if that shows already.
func (s *Store) OpenLayer(ctx context.Context, diffID digest.Digest) (*View, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := Check(diffID); err != nil {
		return nil, err
	}
	held, ok := s.holdWhole(diffID)
	if !ok {
		return nil, fmt.Errorf("open layer %s: %w, or not unpacked yet", diffID, ErrMissing)
	}
	dir := s.layerDir(diffID)
	files, err := s.driver.View(ctx, dir)
	if err != nil {
		held.Release()
		return nil, fmt.Errorf("open layer %s: %w", diffID, err)
	}
	return &View{diffID: diffID, dir: dir, files: files, release: sync.OnceFunc(held.Release)}, nil
}

// Dir is the directory with the layer's files, with the markers that snapshot.Store.Markers says.
// Images wrote its content: go through internal/safepath.
func (v *View) Dir() string { return v.files }

// Recipe is how the layer's archive is made again, as it was written through
// Writer.Recipe; os.ErrNotExist if none was.
func (v *View) Recipe() (io.ReadCloser, error) {
	f, err := os.Open(filepath.Join(v.dir, recipeName))
	if err != nil {
		return nil, fmt.Errorf("recipe of layer %s: %w", v.diffID, err)
	}
	return f, nil
}

// Close ends the view; again is fine.
func (v *View) Close() error {
	v.release()
	return nil
}

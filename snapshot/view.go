package snapshot

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"

	"github.com/opencontainers/go-digest"
)

// LayerView is a layer being read. It cannot be removed until Close.
type LayerView struct {
	diffID  digest.Digest
	dir     string
	files   string
	release func()
}

// OpenLayer opens a layer to read it. ErrLayerMissing if it is not in the store,
// ErrDamaged if that shows already.
func (s *Store) OpenLayer(ctx context.Context, diffID digest.Digest) (*LayerView, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := checkDigest(diffID); err != nil {
		return nil, err
	}
	l := s.hold(diffID)
	if l == nil {
		return nil, fmt.Errorf("open layer %s: %w, or not unpacked yet", diffID, ErrLayerMissing)
	}
	dir := s.layerDir(diffID)
	files, err := s.driver.View(ctx, dir)
	if err != nil {
		s.letGo(l)
		return nil, fmt.Errorf("open layer %s: %w", diffID, err)
	}
	return &LayerView{diffID: diffID, dir: dir, files: files, release: sync.OnceFunc(func() { s.letGo(l) })}, nil
}

// Dir is the directory with the layer's files, with the markers that Store.Markers says.
// What is in it was written by strangers: go through internal/safepath.
func (v *LayerView) Dir() string { return v.files }

// Recipe is how the layer's archive is made again, as it was written through
// LayerWriter.Recipe; os.ErrNotExist if none was.
func (v *LayerView) Recipe() (io.ReadCloser, error) {
	f, err := os.Open(filepath.Join(v.dir, recipeName))
	if err != nil {
		return nil, fmt.Errorf("recipe of layer %s: %w", v.diffID, err)
	}
	return f, nil
}

// Close ends the view; again is fine.
func (v *LayerView) Close() error {
	v.release()
	return nil
}

// hold counts a user of a whole layer, which keeps it from being removed; nil if it is not there.
func (s *Store) hold(diffID digest.Digest) *layer {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.layers[diffID]
	if l == nil || l.lazy != "" {
		return nil
	}
	l.users++
	return l
}

func (s *Store) letGo(l *layer) {
	s.mu.Lock()
	l.users--
	freed := l.users == 0 && l.wanted
	if freed {
		l.wanted = false
	}
	s.mu.Unlock()
	if freed {
		s.freed()
	}
}

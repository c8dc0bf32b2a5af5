package snapshot

import (
	"context"
	"errors"
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
	files, err := s.driver.view(ctx, dir)
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

// Quarantine takes a damaged layer out of use: no snapshot can be prepared from it any
// more, and it can be committed anew. Containers that run from it go on, since their mounts
// hold what they have. Its files are kept while there is a snapshot of the layer, and for
// whoever wants to know what happened to them: until the layer is committed again, but not
// beyond a week. What has to stay then goes with a later commit or Start. A layer that is
// not there is fine.
func (s *Store) Quarantine(diffID digest.Digest) error {
	if err := checkDigest(diffID); err != nil {
		return err
	}
	s.renames.Lock()
	defer s.renames.Unlock()
	s.mu.Lock()
	l := s.layers[diffID]
	delete(s.layers, diffID)
	s.mu.Unlock()
	if l == nil {
		return nil
	}
	if l.lazy != "" {
		return s.dropLazy(diffID)
	}
	if err := s.driver.free(s.layerDir(diffID)); err != nil {
		s.log.Warn("a quarantined layer stays mounted", "layer", diffID.String(), "error", err)
	}
	to := filepath.Join(s.quarantineDir(), diffID.Encoded()+"."+newName())
	if err := os.Rename(s.layerDir(diffID), to); err != nil && !errors.Is(err, os.ErrNotExist) {
		s.mu.Lock()
		s.layers[diffID] = l
		s.mu.Unlock()
		return fmt.Errorf("quarantine layer %s: %w", diffID, err)
	}
	s.log.Warn("layer quarantined: it is damaged", "layer", diffID.String(), "moved", to)
	return nil
}

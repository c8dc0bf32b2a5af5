// Package layers keeps the unpacked layers of images in snapshot stores. One is the node's: images
// are unpacked into it. A runtime handler may want a snapshot driver of its own: a virtual
// machine's shim may want EROFS images where the node's other containers have overlayfs. Such a
// driver has a store next to the node's, which gets copies of those layers that its containers are
// made of. A copy is made of the archive that the node's store makes again, and that archive is
// checked against its digest. The copy goes when its original goes.
//
//	s := layers.New(layers.Config{Root: "/var/lib/coracle/snapshotters", Node: store, …})
//	_ = s.Start(ctx, drivers)                    // and again when handlers want others
//	images, _ := image.Open(image.Config{Layers: s, …})
//	_ = s.Bring(ctx, snapshot.EROFS, diffIDs)    // when an image is pulled for a handler
//	_, _ = s.Prepare(ctx, id, snapshot.PrepareOptions{Driver: snapshot.EROFS, …})
//
// # On disk
//
//	ROOT/DRIVER/           a store, see package snapshot
//	ROOT/copying/DRIVER-X  layer X is being copied, or its copy may not be on disk yet: removed at the next start
package layers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/opencontainers/go-digest"

	"github.com/coracle-project/coracle/internal/keylock"
	"github.com/coracle-project/coracle/snapshot"
)

// Config is what a Store needs.
type Config struct {
	// Root is the absolute path of the directory that the further stores are in. It is made when
	// there is one.
	Root string
	// Node is the store that images are unpacked into, started, and Driver its driver.
	Node   *snapshot.Store
	Driver snapshot.DriverName
	// Limit and Freed are those of snapshot.Config.
	Limit snapshot.Usage
	Freed func()
	Log   *slog.Logger

	// archive is Store.Archive, but in tests.
	archive func(ctx context.Context, d digest.Digest, w io.Writer) error
	// sync is syncFS, but in tests.
	sync func(path string) error
}

// Store is the node's snapshot store and those of further drivers.
type Store struct {
	cfg  Config
	busy keylock.Lock // by copy

	removing sync.Mutex // held while a layer goes with its copies

	mu   sync.RWMutex
	more map[snapshot.DriverName]*snapshot.Store
}

// New does no I/O; Start does.
func New(c Config) *Store {
	s := &Store{cfg: c, more: map[snapshot.DriverName]*snapshot.Store{}}
	if c.archive == nil {
		s.cfg.archive = s.Archive
	}
	if c.sync == nil {
		s.cfg.sync = syncFS
	}
	return s
}

// drivers are all that there are; the place of one in the list names its range of projects.
var drivers = []snapshot.DriverName{snapshot.Overlay, snapshot.EROFS, snapshot.Native}

// Start opens the stores of the drivers, if they are not open, and those that were left by handlers
// which are no more: their containers may still run.
func (s *Store) Start(ctx context.Context, wanted []snapshot.DriverName) error {
	for i, d := range drivers {
		isWanted := d != s.cfg.Driver && slices.Contains(wanted, d)
		_, err := os.Stat(s.dir(d))
		if !isWanted && errors.Is(err, fs.ErrNotExist) || s.at(d) != nil {
			continue
		}
		err = s.open(ctx, d, i+1, isWanted)
		if err != nil && isWanted {
			return fmt.Errorf("snapshotter %s of a runtime handler: %w", d, err)
		}
		if err != nil {
			s.cfg.Log.Warn("cannot open the layer store of a removed handler", "snapshotter", d, "err", err)
		}
	}
	return nil
}

func (s *Store) open(ctx context.Context, d snapshot.DriverName, projects int, wanted bool) error {
	for _, dir := range []string{s.dir(d), s.copying()} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	store := snapshot.New(snapshot.Config{
		Root: s.dir(d), Driver: d, Projects: projects, Limit: s.cfg.Limit, Freed: s.cfg.Freed, Log: s.cfg.Log,
	})
	if err := store.Start(ctx); err != nil {
		return err
	}
	if err := s.tidy(ctx, d, store, wanted); err != nil {
		return errors.Join(err, store.Close())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.more[d] = store
	return nil
}

// tidy removes copies that a crash may have damaged, those whose originals are gone, and all if no
// one wants them. What containers use stays.
func (s *Store) tidy(ctx context.Context, d snapshot.DriverName, store *snapshot.Store, wanted bool) error {
	layers, err := store.Layers()
	if err != nil {
		return err
	}
	for _, layer := range layers {
		_, err := os.Lstat(s.mark(d, layer))
		if wanted && errors.Is(err, fs.ErrNotExist) && s.cfg.Node.HasLayer(layer) {
			continue
		}
		if err := store.RemoveLayer(ctx, layer); err != nil && !errors.Is(err, snapshot.ErrLayerInUse) {
			return err
		}
	}
	marks, err := os.ReadDir(s.copying())
	if err != nil {
		return err
	}
	for _, m := range marks {
		if strings.HasPrefix(m.Name(), string(d)+"-") {
			if err := os.Remove(filepath.Join(s.copying(), m.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *Store) dir(d snapshot.DriverName) string { return filepath.Join(s.cfg.Root, string(d)) }

func (s *Store) copying() string { return filepath.Join(s.cfg.Root, "copying") }

func (s *Store) mark(d snapshot.DriverName, layer digest.Digest) string {
	return filepath.Join(s.copying(), string(d)+"-"+layer.Encoded())
}

// at is a further store; nil if there is none.
func (s *Store) at(d snapshot.DriverName) *snapshot.Store {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.more[d]
}

// Of is the store of a driver; the node's if that is empty.
func (s *Store) Of(d snapshot.DriverName) (*snapshot.Store, error) {
	if d == "" || d == s.cfg.Driver {
		return s.cfg.Node, nil
	}
	if store := s.at(d); store != nil {
		return store, nil
	}
	return nil, fmt.Errorf("%w: no store of snapshotter %q is open", snapshot.ErrUnsupported, d)
}

// others are the further stores.
func (s *Store) others() []*snapshot.Store {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var out []*snapshot.Store
	for _, d := range drivers {
		if store := s.more[d]; store != nil {
			out = append(out, store)
		}
	}
	return out
}

// having is the store that has a snapshot, the node's if none has.
func (s *Store) having(id string) *snapshot.Store {
	for _, store := range s.others() {
		if _, err := store.Get(id); err == nil {
			return store
		}
	}
	return s.cfg.Node
}

// Close closes all but the node's store.
func (s *Store) Close() error {
	var errs []error
	for _, store := range s.others() {
		errs = append(errs, store.Close())
	}
	return errors.Join(errs...)
}

// Package layer keeps the unpacked layers of a snapshot store: their directories, who uses which,
// those that are shown before they are here (lazy.go), and damaged ones (quarantine.go). It knows
// nothing of snapshots but that they hold layers. Package snapshot says what is where on disk.
package layer

import (
	"context"
	_ "crypto/sha256" // for digest.Digest.Validate
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/internal/transient"
	"github.com/coracle-project/coracle/snapshot/diff"
	"github.com/coracle-project/coracle/snapshot/driver"
	"github.com/coracle-project/coracle/snapshot/space"
	"github.com/coracle-project/coracle/snapshot/trash"
)

// Kinds of error, for errors.Is; package snapshot has the others.
var (
	ErrMissing = errors.New("layer is not in the store")
	ErrInUse   = errors.New("layer is in use by a snapshot")
	ErrExists  = errors.New("layer already exists")
)

// Config is what a Store needs.
type Config struct {
	// Root is the directory of the snapshot store.
	Root string
	// Trash has the directory that layers are unpacked in, and deletes them.
	Trash *trash.Trash
	// Freed is called when no one uses a layer any more whose removal was refused with ErrInUse.
	Freed func()
	// ReadFile reads records: os.ReadFile, except in tests.
	ReadFile func(path string) ([]byte, error)
	Log      *slog.Logger
}

// Driver is what layers need of a driver; package driver describes it.
type Driver interface {
	Seal(ctx context.Context, dir string) error
	View(ctx context.Context, dir string) (path string, err error)
	Free(dir string) error
}

// Store keeps layers. Its methods may be called concurrently.
type Store struct {
	root       string
	log        *slog.Logger
	freed      func()
	readFile   func(path string) ([]byte, error)
	trash      *trash.Trash
	driver     Driver      // set by Start
	driverName driver.Name // set by Start

	// renames is held while a directory gets or loses its final name in
	// layers/, so that a commit and a removal of one layer cannot cross.
	renames sync.Mutex

	mu      sync.Mutex
	layers  map[digest.Digest]*entry
	users   map[digest.Digest]int      // holders of a layer, which may be missing or in quarantine
	unsure  int                        // holders that may use any layer, those in quarantine included
	reached map[digest.Digest]*reached // the lazy layers whose mounts are being reached for
}

// entry is one layer.
type entry struct {
	usage space.Usage
	// wanted says that RemoveLayer was refused because of the users.
	wanted bool
	// lazy is the blob that someone shows the layer from, and toc the digest of its table of
	// contents; "": it is unpacked. Guarded by Store.mu.
	lazy, toc digest.Digest
}

// New returns a store; it does no I/O. Start must be called before anything else.
func New(c Config) *Store {
	return &Store{
		root: c.Root, log: c.Log, freed: c.Freed, readFile: c.ReadFile, trash: c.Trash,
		layers: map[digest.Digest]*entry{}, users: map[digest.Digest]int{}, reached: map[digest.Digest]*reached{},
	}
}

// Top is where a store with this root has the directories of its layers, named by digest.
func Top(root string) string { return filepath.Join(root, "layers", "sha256") }

// Dirs are the directories that Start needs.
func (s *Store) Dirs() []string { return []string{Top(s.root), s.quarantineDir(), s.lazyTop()} }

func (s *Store) layerDir(d digest.Digest) string { return filepath.Join(Top(s.root), d.Encoded()) }

// Start reads the records; shown, if not nil, says whether a lazy layer is still shown.
func (s *Store) Start(name driver.Name, d Driver, shown func(digest.Digest) bool) error {
	s.driverName, s.driver = name, d
	spread(s.trash.Dir()) // where layers are unpacked
	if err := s.loadLayers(); err != nil {
		return err
	}
	return s.loadLazy(shown)
}

// Tidy deletes old damaged layers. The snapshots must be known.
func (s *Store) Tidy() {
	if err := s.dropOldQuarantine(); err != nil {
		s.log.Warn("cannot remove old damaged layers", "err", err)
	}
}

// Close unmounts layers that no one uses.
func (s *Store) Close() error {
	var errs []error
	for _, d := range s.idleLayers() {
		errs = append(errs, s.driver.Free(s.layerDir(d)))
	}
	return errors.Join(errs...)
}

// idleLayers are those that nothing uses.
func (s *Store) idleLayers() (idle []digest.Digest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for d := range s.layers {
		if s.users[d] == 0 {
			idle = append(idle, d)
		}
	}
	return idle
}

// Check returns ErrInvalid unless d is a valid sha256 digest.
func Check(d digest.Digest) error {
	if err := d.Validate(); err != nil {
		return fmt.Errorf("%w: layer %q: %w", diff.ErrInvalid, d, err)
	}
	if d.Algorithm() != digest.SHA256 {
		return fmt.Errorf("%w: layer %q: only sha256 is supported", diff.ErrInvalid, d)
	}
	return nil
}

// layerFile is the content of layer.json.
type layerFile struct {
	Version int           `json:"version"` // 1
	DiffID  digest.Digest `json:"diffID"`
	Bytes   int64         `json:"bytes"`
	Inodes  int64         `json:"inodes"`
}

// publish renames a staged layer to its final name and reports whether it was the
// first under that name. It takes the place of a lazy one, with its users.
func (s *Store) publish(staged string, diffID digest.Digest, u space.Usage) (won bool, err error) {
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
		l.usage, l.lazy, l.toc = u, "", ""
		return true, nil
	}
	s.layers[diffID] = &entry{usage: u}
	return true, nil
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
	return s.layers[diffID] != nil && s.users[diffID] > 0
}

// Layers lists all layers, lazy ones too, sorted.
func (s *Store) Layers() ([]digest.Digest, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.layers)), nil
}

// LayerUsage returns what the layer takes, as said when it was committed; of a lazy one, what has
// come by now.
func (s *Store) LayerUsage(diffID digest.Digest) (space.Usage, error) {
	if blob, _ := s.LazySource(diffID); blob != "" {
		return s.lazyUsage(diffID)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.layers[diffID]
	if l == nil {
		return space.Usage{}, fmt.Errorf("layer %s: %w", diffID, ErrMissing)
	}
	return l.usage, nil
}

// RemoveLayer deletes a layer; it fails with ErrInUse, changing nothing, if a
// snapshot uses it (Config.Freed tells when to try again). A layer that is not there
// is fine.
func (s *Store) RemoveLayer(ctx context.Context, diffID digest.Digest) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := Check(diffID); err != nil {
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
		err = s.trash.Discard(s.layerDir(diffID))
	}
	if err != nil {
		s.mu.Lock()
		s.layers[diffID] = taken
		s.mu.Unlock()
		return fmt.Errorf("remove layer %s: %w", diffID, err)
	}
	return faultLayerRemoved.At(ctx)
}

// forgetLayer takes an unused layer from the store, so that no snapshot can begin
// to use it.
func (s *Store) forgetLayer(diffID digest.Digest) (*entry, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.layers[diffID]
	if l != nil && s.users[diffID] > 0 {
		l.wanted = true
		return nil, fmt.Errorf("remove layer %s: %w (%d of them)", diffID, ErrInUse, s.users[diffID])
	}
	delete(s.layers, diffID)
	return l, nil
}

// loadLayers reads the layers' records. Commit names no layer without one: where it cannot be
// read, the layer is damaged, but containers may run from it. What no layer is called is dropped.
func (s *Store) loadLayers() error {
	entries, err := os.ReadDir(Top(s.root))
	if err != nil {
		return fmt.Errorf("snapshot store: %w", err)
	}
	var w transient.Waits
	for _, e := range entries {
		d := digest.NewDigestFromEncoded(digest.SHA256, e.Name())
		u, err := transient.Try(&w, func() (space.Usage, error) { return s.readLayerFile(filepath.Join(Top(s.root), e.Name()), d) })
		switch {
		case err == nil:
			s.layers[d] = &entry{usage: u}
		case transient.Scarce(err): // affects all layers, not only this one
			return fmt.Errorf("snapshot store: layer %s: %w", d, err)
		case Check(d) == nil:
			s.log.Warn("a layer's record cannot be read", "layer", d.String(), "err", err)
			err = s.setAside(d)
		default:
			s.log.Warn("dropping what is no layer", "name", e.Name(), "err", err)
			err = s.trash.Discard(filepath.Join(Top(s.root), e.Name()))
		}
		if err != nil { // the layer is not offered, which is what counts
			s.log.Warn("cannot remove damaged layer; it stays in place", "name", e.Name(), "err", err)
		}
	}
	return nil
}

func (s *Store) readLayerFile(dir string, d digest.Digest) (space.Usage, error) {
	if err := Check(d); err != nil {
		return space.Usage{}, err
	}
	data, err := s.readFile(filepath.Join(dir, "layer.json"))
	if err != nil {
		return space.Usage{}, err
	}
	var f layerFile
	if err := json.Unmarshal(data, &f); err != nil {
		return space.Usage{}, fmt.Errorf("layer.json: %w", err)
	}
	if f.Version != 1 || f.DiffID != d {
		return space.Usage{}, fmt.Errorf("layer.json: version %d of %s", f.Version, f.DiffID)
	}
	return space.Usage{Bytes: f.Bytes, Inodes: f.Inodes}, nil
}

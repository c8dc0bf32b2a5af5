package snapshot

import (
	"cmp"
	"context"
	_ "crypto/sha256" // for digest.Digest.Validate
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/opencontainers/go-digest"

	"github.com/coracle-project/coracle/internal/keylock"
	"github.com/coracle-project/coracle/internal/privatedir"
	"github.com/coracle-project/coracle/snapshot/diff"
	"github.com/coracle-project/coracle/snapshot/driver"
	"github.com/coracle-project/coracle/snapshot/layer"
	"github.com/coracle-project/coracle/snapshot/space"
	"github.com/coracle-project/coracle/snapshot/trash"
)

// Config is what a Store needs.
type Config struct {
	// Root is the absolute path of the store's directory. It becomes part of
	// mount options, so it is at most maxRoot bytes long and has no ':', ',' or '\'.
	Root string
	// Driver is Overlay if empty. A root that another driver has filled can be taken
	// over when it has no mounted snapshots; its layers are dropped.
	Driver DriverName
	// Projects is which range of quota projects its snapshots have: stores that may be on one
	// file system need different ones.
	Projects int
	// Limit is that of snapshots that bring none of their own. Without project quotas
	// Start fails with ErrUnsupported if it is set.
	Limit Usage
	// Freed, if not nil, is called when no snapshot uses a layer any more whose
	// removal was refused with ErrLayerInUse: it is time to try again. It must
	// not block, and may be called from Start's return on.
	Freed func()
	// Shown, if not nil, says whether a lazy layer is still shown (BeginLazy); Start asks.
	Shown func(diffID digest.Digest) bool
	Log   *slog.Logger // slog.Default() if nil
}

// maxRoot keeps every path below the root within the 255 bytes that fsconfig(2)
// takes: "/layers/sha256/" + 64 + "/fs" is the longest.
const maxRoot = 170

// Store keeps layers and snapshots under one root directory. Its methods may be
// called concurrently.
type Store struct {
	*index // of the snapshots, and the layers that they are made of
	paths
	*roots

	root  string
	log   *slog.Logger
	shown func(digest.Digest) bool
	busy  keylock.Lock // by snapshot id

	limit      Usage // default of snapshots
	driverName DriverName
	readFile   func(path string) ([]byte, error) // of records: os.ReadFile, except in tests
}

// New returns a store; it does no I/O. Start must be called before anything else.
func New(c Config) *Store {
	if c.Log == nil {
		c.Log = slog.Default()
	}
	if c.Freed == nil {
		c.Freed = func() {}
	}
	root := filepath.Clean(c.Root)
	s := &Store{
		root:       root,
		paths:      paths(root),
		limit:      c.Limit,
		driverName: cmp.Or(c.Driver, Overlay),
		log:        c.Log,
		readFile:   os.ReadFile,
		shown:      c.Shown,
	}
	bin := trash.New(s.stagingDir(), diff.FilesDir, c.Log)
	s.index = &index{root: s.root, snapshots: map[string]*entry{}, projects: space.Projects{Range: c.Projects}}
	s.layers = layer.New(layer.Config{
		Root: s.root, Trash: bin, Freed: c.Freed, Log: c.Log,
		ReadFile: func(path string) ([]byte, error) { return s.readFile(path) },
	})
	s.roots = &roots{paths: s.paths, index: s.index, trash: bin}
	return s
}

func snapshotsIn(root string) string { return filepath.Join(root, "snapshots") }

// paths are the directories of a store with this root.
type paths string

func (p paths) stagingDir() string           { return filepath.Join(string(p), "staging") }
func (p paths) snapshotsDir() string         { return snapshotsIn(string(p)) }
func (p paths) emptyDir() string             { return filepath.Join(string(p), driver.EmptyDir) }
func (p paths) snapshotDir(id string) string { return filepath.Join(p.snapshotsDir(), id) }

// Start makes the directories, checks that the file system can hold snapshots,
// reads the records, and starts to delete what a crash left in staging.
func (s *Store) Start(ctx context.Context) error {
	if err := checkRoot(s.root); err != nil {
		return err
	}
	d, err := driver.New(s.driverName, s.root, s.trash.Discard)
	if err != nil {
		return err
	}
	s.driver = d
	for _, dir := range append([]string{s.root, s.stagingDir(), s.snapshotsDir()}, s.layers.Dirs()...) {
		if err := privatedir.Make(dir); err != nil {
			return fmt.Errorf("snapshot store: %w", err)
		}
	}
	// Roots without layers show its mode.
	if err := os.MkdirAll(s.emptyDir(), 0o711); err != nil {
		return fmt.Errorf("snapshot store: %w", err)
	}
	// Layers are as their images made them, set-user-id programs included: no
	// user of the host may reach into them.
	if err := os.Chmod(s.root, 0o700); err != nil {
		return fmt.Errorf("snapshot store: %w", err)
	}
	try := prober{paths: s.paths, driver: s.driver}
	if err := try.dropAll(); err != nil {
		return err
	}
	left, err := os.ReadDir(s.stagingDir())
	if err != nil {
		return fmt.Errorf("snapshot store: %w", err)
	}
	if err := try.roots(); err != nil {
		return err
	}
	owner := &takeover{root: s.root, name: s.driverName, discard: s.trash.Discard, log: s.log}
	if err := owner.run(); err != nil {
		return err
	}
	s.quota = space.Find(s.root)
	if s.quota == nil && s.limit != (Usage{}) {
		return fmt.Errorf("snapshot store: %w: limits need project quotas, and %s on %s has none; mount it with prjquota, or set no limits",
			ErrUnsupported, s.root, driver.FSType(s.root))
	}
	if err := s.layers.Start(s.driverName, s.driver, s.shown); err != nil {
		return err
	}
	if err := owner.dropLayerMounts(s.layers.HasLayer); err != nil {
		return err
	}
	records := &records{roots: s.roots, readFile: s.readFile, log: s.log}
	if err := records.load(ctx); err != nil {
		return err
	}
	s.layers.Tidy()
	s.trash.Start()
	for _, e := range left {
		s.trash.Delete(e.Name())
	}
	return nil
}

// Close stops deleting in the background; what is left is deleted after the next
// Start. Snapshots stay mounted, and the layers that they are made of.
func (s *Store) Close() error {
	s.trash.Close()
	return errors.Join(s.layers.Close(), s.quota.Close())
}

// Markers say how layers are to be unpacked for the store's driver.
func (s *Store) Markers() Markers { return s.driver.Markers() }

// Flush waits until everything removed before it was called is off the disk.
func (s *Store) Flush(ctx context.Context) error { return s.trash.Flush(ctx) }

func checkRoot(root string) error {
	switch {
	case !filepath.IsAbs(root):
		return fmt.Errorf("%w: snapshot root %q is not an absolute path", ErrInvalid, root)
	case len(root) > maxRoot:
		return fmt.Errorf("%w: snapshot root %q is longer than %d bytes; choose a shorter path", ErrInvalid, root, maxRoot)
	case strings.ContainsAny(root, ":,\\"):
		return fmt.Errorf("%w: snapshot root %q has a ':', ',' or '\\' in it, which mount options cannot carry", ErrInvalid, root)
	}
	return nil
}

// checkID keeps ids from naming anything but one directory.
func checkID(id string) error {
	if len(id) == 0 || len(id) > 64 || id[0] == '.' || id[0] == '-' {
		return fmt.Errorf("%w: snapshot id %q", ErrInvalid, id)
	}
	for _, c := range []byte(id) {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '.', c == '_', c == '-':
		default:
			return fmt.Errorf("%w: snapshot id %q", ErrInvalid, id)
		}
	}
	return nil
}

package snapshot

import (
	"context"
	_ "crypto/sha256" // for digest.Digest.Validate
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/internal/keylock"
)

// Config is what a Store needs.
type Config struct {
	// Root is the absolute path of the store's directory. It becomes part of
	// mount options, so it is at most maxRoot bytes long and has no ':', ',' or '\'.
	Root string
	// Freed, if not nil, is called when no snapshot uses a layer any more whose
	// removal was refused with ErrLayerInUse: it is time to try again. It must
	// not block, and may be called from Start's return on.
	Freed func()
	Log   *slog.Logger // slog.Default() if nil
}

// maxRoot keeps every path below the root within the 255 bytes that fsconfig(2)
// takes: "/layers/sha256/" + 64 + "/fs" is the longest.
const maxRoot = 170

// Store keeps layers and snapshots under one root directory. Its methods may be
// called concurrently.
type Store struct {
	root  string
	log   *slog.Logger
	freed func()
	trash *trash
	api   mountAPI     // set by Start
	busy  keylock.Lock // by snapshot id

	// renames is held while a directory gets or loses its final name in
	// layers/, so that a commit and a removal of one layer cannot cross.
	renames sync.Mutex

	mu        sync.Mutex
	layers    map[digest.Digest]*layer
	snapshots map[string]*entry
}

// layer is one whole layer.
type layer struct {
	usage Usage
	users int // snapshots made of it
	// wanted says that RemoveLayer was refused because of the users.
	wanted bool
}

// entry is one snapshot.
type entry struct {
	snap    Snapshot
	mounted bool
}

// New returns a store; it does no I/O. Start must be called before anything else.
func New(c Config) *Store {
	if c.Log == nil {
		c.Log = slog.Default()
	}
	if c.Freed == nil {
		c.Freed = func() {}
	}
	s := &Store{
		root:      filepath.Clean(c.Root),
		log:       c.Log,
		freed:     c.Freed,
		layers:    map[digest.Digest]*layer{},
		snapshots: map[string]*entry{},
	}
	s.trash = newTrash(s.stagingDir(), c.Log)
	return s
}

func (s *Store) stagingDir() string           { return filepath.Join(s.root, "staging") }
func (s *Store) layersDir() string            { return filepath.Join(s.root, "layers", "sha256") }
func (s *Store) snapshotsDir() string         { return filepath.Join(s.root, "snapshots") }
func (s *Store) emptyDir() string             { return filepath.Join(s.root, "empty") }
func (s *Store) snapshotDir(id string) string { return filepath.Join(s.snapshotsDir(), id) }
func (s *Store) layerDir(d digest.Digest) string {
	return filepath.Join(s.layersDir(), d.Encoded())
}

// Start makes the directories, checks that the file system can hold snapshots,
// reads the records, and begins to delete what a crash left in staging.
func (s *Store) Start(ctx context.Context) error {
	if err := checkRoot(s.root); err != nil {
		return err
	}
	for _, dir := range []string{s.root, s.stagingDir(), s.layersDir(), s.snapshotsDir(), s.emptyDir()} {
		if err := os.MkdirAll(dir, 0o711); err != nil {
			return fmt.Errorf("snapshot store: %w", err)
		}
	}
	// Layers are as their images made them, set-user-id programs included: no
	// user of the host may reach into them.
	if err := os.Chmod(s.root, 0o700); err != nil {
		return fmt.Errorf("snapshot store: %w", err)
	}
	api, err := findMountAPI()
	if err != nil {
		return err
	}
	s.api = api
	left, err := os.ReadDir(s.stagingDir())
	if err != nil {
		return fmt.Errorf("snapshot store: %w", err)
	}
	if err := s.probe(); err != nil {
		return err
	}
	if err := s.loadLayers(); err != nil {
		return err
	}
	if err := s.loadSnapshots(ctx); err != nil {
		return err
	}
	s.trash.start()
	for _, e := range left {
		s.trash.delete(e.Name())
	}
	return nil
}

// Close stops deleting in the background; what is left is deleted after the next
// Start. Snapshots stay mounted.
func (s *Store) Close() error {
	s.trash.close()
	return nil
}

// Flush waits until everything removed before it was called is off the disk.
func (s *Store) Flush(ctx context.Context) error { return s.trash.flush(ctx) }

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

// checkDigest accepts what layer directories are named by.
func checkDigest(d digest.Digest) error {
	if err := d.Validate(); err != nil {
		return fmt.Errorf("%w: layer %q: %w", ErrInvalid, d, err)
	}
	if d.Algorithm() != digest.SHA256 {
		return fmt.Errorf("%w: layer %q: only sha256 is supported", ErrInvalid, d)
	}
	return nil
}

// discard moves a directory out of sight in one step and has it deleted in the
// background. A missing directory is fine.
func (s *Store) discard(dir string) error {
	name := newName()
	err := unix.Rename(dir, filepath.Join(s.stagingDir(), name))
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("move %s to staging: %w", dir, err)
	}
	s.trash.delete(name)
	return nil
}

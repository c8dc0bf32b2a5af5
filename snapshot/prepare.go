package snapshot

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/internal/atomicfile"
	"github.com/coracle-project/coracle/internal/fault"
)

// Prepare makes a writable root file system out of layers and mounts it at the
// target. For an id that is mounted already it returns what is there, if it is the
// same, else ErrExists. ErrLayerMissing if a layer is not in the store; ErrUnclean
// if the id was lost in a reboot. On error nothing is left that was not before.
func (s *Store) Prepare(ctx context.Context, id string, o PrepareOptions) (Snapshot, error) {
	if err := o.check(id); err != nil {
		return Snapshot{}, err
	}
	release, err := s.busy.Acquire(ctx, id)
	if err != nil {
		return Snapshot{}, fmt.Errorf("prepare snapshot %w", err)
	}
	defer release()

	snap := Snapshot{ID: id, Layers: slices.Clone(o.Layers), Target: filepath.Clean(o.Target), Upper: filepath.Join(s.snapshotDir(id), "fs")}
	state, err := s.reserve(snap)
	if err != nil {
		return Snapshot{}, err
	}
	switch state {
	case isMounted:
		return snap, nil
	case isNew:
		err = s.build(ctx, snap)
		if err != nil {
			// What could not be undone keeps its record for a later Remove.
			if undo := s.demolish(ctx, snap); undo != nil {
				return Snapshot{}, errors.Join(err, undo)
			}
			s.forget(id)
		}
	case isUnmounted:
		err = s.remount(ctx, snap)
	}
	if err != nil {
		return Snapshot{}, fmt.Errorf("prepare snapshot %s: %w", id, err)
	}
	return snap, nil
}

func (o PrepareOptions) check(id string) error {
	if err := checkID(id); err != nil {
		return err
	}
	if !filepath.IsAbs(o.Target) {
		return fmt.Errorf("%w: snapshot %s: target %q is not an absolute path", ErrInvalid, id, o.Target)
	}
	for _, d := range o.Layers {
		if err := checkDigest(d); err != nil {
			return fmt.Errorf("snapshot %s: %w", id, err)
		}
	}
	return nil
}

// standing is what there is of a snapshot when Prepare is called.
type standing int

const (
	isNew standing = iota
	isMounted
	isUnmounted
)

// reserve enters the snapshot in the index, so that its layers stay.
func (s *Store) reserve(snap Snapshot) (standing, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.snapshots[snap.ID]; e != nil {
		if !slices.Equal(e.snap.Layers, snap.Layers) || e.snap.Target != snap.Target {
			return 0, fmt.Errorf("prepare snapshot %s: %w, with other layers or at another target (%s)", snap.ID, ErrExists, e.snap.Target)
		}
		if e.mounted {
			return isMounted, nil
		}
		return isUnmounted, nil
	}
	for _, d := range snap.Layers {
		if s.layers[d] == nil {
			return 0, fmt.Errorf("prepare snapshot %s: %w: %s", snap.ID, ErrLayerMissing, d)
		}
	}
	s.addLocked(snap)
	return isNew, nil
}

func (s *Store) addLocked(snap Snapshot) *entry {
	e := &entry{snap: snap}
	s.snapshots[snap.ID] = e
	for _, d := range snap.Layers {
		if l := s.layers[d]; l != nil {
			l.users++
		}
	}
	return e
}

// forget takes the snapshot from the index and lets go of its layers.
func (s *Store) forget(id string) {
	if s.release(id) {
		s.freed()
	}
}

// release is forget without telling, and says whether there is something to tell:
// a layer that was to be removed has lost its last user.
func (s *Store) release(id string) (freed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.snapshots[id]
	if e == nil {
		return false
	}
	delete(s.snapshots, id)
	for _, d := range e.snap.Layers {
		l := s.layers[d]
		if l == nil {
			continue
		}
		if l.users--; l.users == 0 && l.wanted {
			l.wanted, freed = false, true
		}
	}
	return freed
}

func (s *Store) setMounted(id string, mounted bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.snapshots[id].mounted = mounted
}

func (s *Store) isMounted(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.snapshots[id].mounted
}

// build makes the snapshot's directories, record first, and mounts it.
func (s *Store) build(ctx context.Context, snap Snapshot) error {
	dir := s.snapshotDir(snap.ID)
	err := os.Mkdir(dir, 0o700)
	if errors.Is(err, os.ErrExist) {
		// A directory that the index does not know is a removal's leftover.
		err = errors.Join(s.discard(dir), os.Mkdir(dir, 0o700))
	}
	if err != nil {
		return err
	}
	data, err := json.Marshal(snap)
	if err != nil {
		return err
	}
	if err := atomicfile.Write(filepath.Join(dir, recordName), data, 0o600); err != nil {
		return err
	}
	if err := fault.At(ctx, "snapshot.prepare.recorded"); err != nil {
		return err
	}
	return s.mountFresh(ctx, snap)
}

// mountFresh makes empty upper and work directories and mounts the overlay.
func (s *Store) mountFresh(ctx context.Context, snap Snapshot) error {
	work := filepath.Join(s.snapshotDir(snap.ID), "work")
	if err := os.Mkdir(work, 0o700); err != nil {
		return err
	}
	if err := s.makeUpper(snap); err != nil {
		return err
	}
	if err := os.MkdirAll(snap.Target, 0o755); err != nil {
		return err
	}
	// Were there another already, unmounting could take the wrong one.
	if taken, err := isOverlayRoot(snap.Target); err != nil {
		return err
	} else if taken {
		return fmt.Errorf("%w: another overlay is mounted at %s", ErrInvalid, snap.Target)
	}
	o := overlay{lower: s.lowerDirs(snap.Layers), upper: snap.Upper, work: work}
	if err := o.mount(snap.Target, s.api); err != nil {
		return err
	}
	s.setMounted(snap.ID, true)
	return fault.At(ctx, "snapshot.prepare.mounted")
}

// makeUpper makes the upper directory. The root of an overlay shows the upper
// directory's owner and mode, so these are taken from the layer that would show
// without it.
func (s *Store) makeUpper(snap Snapshot) error {
	if err := os.Mkdir(snap.Upper, 0o755); err != nil {
		return err
	}
	if len(snap.Layers) == 0 {
		return nil
	}
	var st unix.Stat_t
	top := filepath.Join(s.layerDir(snap.Layers[len(snap.Layers)-1]), "fs")
	if err := unix.Stat(top, &st); err != nil {
		return fmt.Errorf("stat %s: %w", top, err)
	}
	if st.Uid != 0 || st.Gid != 0 {
		if err := os.Chown(snap.Upper, int(st.Uid), int(st.Gid)); err != nil {
			return err
		}
	}
	if err := unix.Chmod(snap.Upper, st.Mode&0o7777); err != nil {
		return fmt.Errorf("chmod %s: %w", snap.Upper, err)
	}
	return nil
}

// lowerDirs returns the layers' directories, uppermost first as overlayfs wants. It
// takes none twice (ELOOP), but images have layers twice, mostly empty ones: the
// uppermost is enough, for it covers or hides whatever its double could show.
func (s *Store) lowerDirs(layers []digest.Digest) []string {
	if len(layers) == 0 {
		return []string{s.emptyDir()}
	}
	dirs := make([]string, 0, len(layers))
	seen := make(map[digest.Digest]bool, len(layers))
	for _, d := range slices.Backward(layers) {
		if !seen[d] {
			seen[d] = true
			dirs = append(dirs, filepath.Join(s.layerDir(d), "fs"))
		}
	}
	return dirs
}

// remount mounts a snapshot whose record was there but whose mount was not: a
// crash came in between, or the machine was reset. Nothing in its upper directory
// means that nobody has used it; then it is made anew.
func (s *Store) remount(ctx context.Context, snap Snapshot) error {
	entries, err := os.ReadDir(snap.Upper)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if len(entries) > 0 {
		return fmt.Errorf("%w: %s is not empty; remove the snapshot and prepare another", ErrUnclean, snap.Upper)
	}
	for _, d := range snap.Layers {
		if !s.HasLayer(d) {
			return fmt.Errorf("%w: %s", ErrLayerMissing, d)
		}
	}
	for _, dir := range []string{snap.Upper, filepath.Join(s.snapshotDir(snap.ID), "work")} {
		if err := s.discard(dir); err != nil {
			return err
		}
	}
	return s.mountFresh(ctx, snap)
}

// Remove unmounts and deletes the snapshot, and its target if that is empty. The
// files are deleted in the background. An unknown id is fine.
func (s *Store) Remove(ctx context.Context, id string) error {
	if err := checkID(id); err != nil {
		return err
	}
	release, err := s.busy.Acquire(ctx, id)
	if err != nil {
		return fmt.Errorf("remove snapshot %w", err)
	}
	defer release()
	snap, err := s.Get(id)
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := s.demolish(ctx, snap); err != nil {
		return fmt.Errorf("remove snapshot %s: %w", id, err)
	}
	s.forget(id)
	return nil
}

// demolish undoes build, however far that came. It must not be stopped halfway by
// the caller's going away, and no step of it waits, so ctx steers fault points only.
func (s *Store) demolish(ctx context.Context, snap Snapshot) error {
	if s.isMounted(snap.ID) {
		if err := unmount(snap.Target); err != nil {
			return err
		}
		s.setMounted(snap.ID, false)
	}
	if err := fault.At(ctx, "snapshot.remove.unmounted"); err != nil {
		return err
	}
	if err := s.discard(s.snapshotDir(snap.ID)); err != nil {
		return err
	}
	// The target may be somebody else's directory, or gone.
	switch err := unix.Rmdir(snap.Target); err {
	case nil, unix.ENOENT, unix.ENOTEMPTY, unix.EEXIST, unix.EBUSY, unix.ENOTDIR:
	default:
		return fmt.Errorf("remove %s: %w", snap.Target, err)
	}
	return fault.At(ctx, "snapshot.remove.discarded")
}

// Get returns a snapshot; ErrNotFound if there is none of that id.
func (s *Store) Get(id string) (Snapshot, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.snapshots[id]
	if e == nil {
		return Snapshot{}, fmt.Errorf("snapshot %s: %w", id, ErrNotFound)
	}
	return e.snap, nil
}

// List returns all snapshots, sorted by id.
func (s *Store) List() []Snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]Snapshot, 0, len(s.snapshots))
	for _, e := range s.snapshots {
		all = append(all, e.snap)
	}
	slices.SortFunc(all, func(a, b Snapshot) int { return cmp.Compare(a.ID, b.ID) })
	return all
}

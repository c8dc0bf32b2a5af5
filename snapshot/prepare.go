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

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/internal/atomicfile"
	"github.com/coracle-project/coracle/snapshot/driver"
	"github.com/coracle-project/coracle/snapshot/layer"
)

// Prepare makes a writable root file system out of layers and mounts it at the
// target. For an id that is mounted already it returns what is there, if it is the
// same, else ErrExists. ErrLayerMissing if a layer is not in the store; ErrUnclean
// if the id was lost in a reboot. On error nothing is left that was not before.
func (s *Store) Prepare(ctx context.Context, id string, o PrepareOptions) (Snapshot, error) {
	if err := o.check(id); err != nil {
		return Snapshot{}, err
	}
	if o.Driver != "" && o.Driver != s.driverName {
		return Snapshot{}, fmt.Errorf("%w: snapshot %s: driver %q, but the store's is %s", ErrInvalid, id, o.Driver, s.driverName)
	}
	release, err := s.busy.Acquire(ctx, id)
	if err != nil {
		return Snapshot{}, fmt.Errorf("prepare snapshot %w", err)
	}
	defer release()

	snap := Snapshot{
		ID: id, Layers: slices.Clone(o.Layers), Target: filepath.Clean(o.Target), Upper: driver.FilesIn(s.snapshotDir(id)),
		Users: o.Users, Access: o.Access, Label: o.Label, Limit: cmp.Or(o.Limit, s.limit),
	}
	snap, state, err := s.reserve(snap)
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
		if err := layer.Check(d); err != nil {
			return fmt.Errorf("snapshot %s: %w", id, err)
		}
	}
	if o.Access != ReadWrite && o.Access != ReadOnly {
		return fmt.Errorf("%w: snapshot %s: access %q", ErrInvalid, id, o.Access)
	}
	if o.Limit.Bytes < 0 || o.Limit.Inodes < 0 {
		return fmt.Errorf("%w: snapshot %s: limit of %d bytes and %d inodes is negative", ErrInvalid, id, o.Limit.Bytes, o.Limit.Inodes)
	}
	if err := o.Users.Check(); err != nil {
		return fmt.Errorf("snapshot %s: %w", id, err)
	}
	return nil
}

// options are those that the snapshot was prepared with.
func (s Snapshot) options() PrepareOptions {
	return PrepareOptions{Layers: s.Layers, Target: s.Target, Users: s.Users, Access: s.Access, Label: s.Label, Limit: s.Limit}
}

// same says whether the snapshot is what the options ask for.
func (s Snapshot) same(o Snapshot) bool {
	return slices.Equal(s.Layers, o.Layers) && s.Target == o.Target && s.Users.Equal(o.Users) && s.Access == o.Access && s.Label == o.Label &&
		s.Limit == o.Limit
}

// build makes the snapshot's directories, record first, and mounts it.
func (s *Store) build(ctx context.Context, snap Snapshot) error {
	dir := s.snapshotDir(snap.ID)
	err := os.Mkdir(dir, 0o700)
	if errors.Is(err, os.ErrExist) {
		// A directory that the index does not know is a removal's leftover.
		err = errors.Join(s.trash.Discard(dir), os.Mkdir(dir, 0o700))
	}
	if err != nil {
		return err
	}
	if err := faultPrepareMade.At(ctx); err != nil {
		return err
	}
	data, err := json.Marshal(snap)
	if err != nil {
		return err
	}
	if err := atomicfile.Write(filepath.Join(dir, recordName), data, 0o600); err != nil {
		return err
	}
	if err := faultPrepareRecorded.At(ctx); err != nil {
		return err
	}
	return s.mountFresh(ctx, snap)
}

// mountFresh has the driver make the root.
func (s *Store) mountFresh(ctx context.Context, snap Snapshot) error {
	if err := s.quota.Begin(s.snapshotDir(snap.ID), snap.Project, snap.Limit); err != nil {
		return err
	}
	if err := os.MkdirAll(snap.Target, 0o755); err != nil {
		return err
	}
	if err := faultPrepareTargeted.At(ctx); err != nil {
		return err
	}
	// Were there another already, unmounting could take the wrong one.
	if taken, err := driver.IsOverlayRoot(snap.Target); err != nil {
		return err
	} else if taken {
		return fmt.Errorf("%w: another overlay is mounted at %s", ErrInvalid, snap.Target)
	}
	users, err := snap.Users.Open()
	if err != nil {
		return err
	}
	if users != nil {
		defer users.Close()
	}
	r, release := s.rootfs(snap)
	defer release()
	r.Users, r.IDs = users, snap.Users
	if err := s.driver.Mount(ctx, r); err != nil {
		return err
	}
	s.setMounted(snap.ID, true)
	return faultPrepareMounted.At(ctx)
}

// rootfs is the snapshot as drivers see it, its user namespace left out. Until release the layers'
// directories stay where they are.
func (s *Store) rootfs(snap Snapshot) (r driver.Rootfs, release func()) {
	dirs, release := s.layers.Paths(snap.Layers)
	return driver.Rootfs{Dir: s.snapshotDir(snap.ID), Layers: dirs, Target: snap.Target, Access: snap.Access, Label: snap.Label}, release
}

// remount mounts a snapshot whose record was there but whose mount was not: a
// crash came in between, or the machine was reset. If no one can have used it, it is made
// again.
func (s *Store) remount(ctx context.Context, snap Snapshot) error {
	r, release := s.rootfs(snap)
	untouched, err := s.driver.Untouched(r)
	release()
	if err != nil {
		return err
	}
	if !untouched {
		return unclean(snap)
	}
	for _, d := range snap.Layers {
		if !s.layers.HasAny(d) {
			return fmt.Errorf("%w: %s", ErrLayerMissing, d)
		}
	}
	return s.mountFresh(ctx, snap)
}

func unclean(snap Snapshot) error {
	return fmt.Errorf("%w: %s is not empty; remove the snapshot and prepare another", ErrUnclean, snap.Upper)
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
	if points := s.pointsOf(snap.ID); len(points) > 0 {
		for _, point := range points {
			if err := s.driver.Unmount(point); err != nil {
				return err
			}
		}
		s.setMounted(snap.ID, false)
	}
	if err := faultRemoveUnmounted.At(ctx); err != nil {
		return err
	}
	if err := s.trash.Discard(s.snapshotDir(snap.ID)); err != nil {
		return err
	}
	if err := faultRemoveMoved.At(ctx); err != nil {
		return err
	}
	s.quota.End(snap.Project)
	// The target may be someone else's directory, or gone.
	switch err := unix.Rmdir(snap.Target); err {
	case nil, unix.ENOENT, unix.ENOTEMPTY, unix.EEXIST, unix.EBUSY, unix.ENOTDIR:
	default:
		return fmt.Errorf("remove %s: %w", snap.Target, err)
	}
	return faultRemoveDiscarded.At(ctx)
}

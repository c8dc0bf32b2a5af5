package snapshot

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

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

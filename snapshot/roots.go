package snapshot

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/internal/atomicfile"
	"github.com/coracle-project/coracle/snapshot/driver"
	"github.com/coracle-project/coracle/snapshot/trash"
)

// roots makes the root file systems of snapshots that the index has, mounts them, and removes them.
type roots struct {
	paths
	index  *index
	trash  *trash.Trash
	driver driver.Driver // set by Start
}

// build makes the snapshot's directories, record first, and mounts it.
func (r *roots) build(ctx context.Context, snap Snapshot) error {
	dir := r.snapshotDir(snap.ID)
	err := os.Mkdir(dir, 0o700)
	if errors.Is(err, os.ErrExist) {
		// A directory that the index does not know is a removal's leftover.
		err = errors.Join(r.trash.Discard(dir), os.Mkdir(dir, 0o700))
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
	return r.mountFresh(ctx, snap)
}

// mountFresh has the driver make the root.
func (r *roots) mountFresh(ctx context.Context, snap Snapshot) error {
	if err := r.index.quota.Begin(r.snapshotDir(snap.ID), snap.Project, snap.Limit); err != nil {
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
	fs, release := r.rootfs(snap)
	defer release()
	fs.Users, fs.IDs = users, snap.Users
	if err := r.driver.Mount(ctx, fs); err != nil {
		return err
	}
	r.index.setMounted(snap.ID, true)
	return faultPrepareMounted.At(ctx)
}

// rootfs is the snapshot as drivers see it, its user namespace left out. Until release the layers'
// directories stay where they are.
func (r *roots) rootfs(snap Snapshot) (fs driver.Rootfs, release func()) {
	dirs, release := r.index.layers.Paths(snap.Layers)
	return driver.Rootfs{Dir: r.snapshotDir(snap.ID), Layers: dirs, Target: snap.Target, Access: snap.Access, Label: snap.Label}, release
}

// remount mounts a snapshot whose record was there but whose mount was not: a
// crash came in between, or the machine was reset. If no one can have used it, it is made
// again.
func (r *roots) remount(ctx context.Context, snap Snapshot) error {
	fs, release := r.rootfs(snap)
	untouched, err := r.driver.Untouched(fs)
	release()
	if err != nil {
		return err
	}
	if !untouched {
		return unclean(snap)
	}
	for _, d := range snap.Layers {
		if !r.index.layers.HasAny(d) {
			return fmt.Errorf("%w: %s", ErrLayerMissing, d)
		}
	}
	return r.mountFresh(ctx, snap)
}

func unclean(snap Snapshot) error {
	return fmt.Errorf("%w: %s is not empty; remove the snapshot and prepare another", ErrUnclean, snap.Upper)
}

// demolish undoes build, however far that came. It must not be stopped halfway by
// the caller's going away, and no step of it waits, so ctx steers fault points only.
func (r *roots) demolish(ctx context.Context, snap Snapshot) error {
	if points := r.index.pointsOf(snap.ID); len(points) > 0 {
		for _, point := range points {
			if err := r.driver.Unmount(point); err != nil {
				return err
			}
		}
		r.index.setMounted(snap.ID, false)
	}
	if err := faultRemoveUnmounted.At(ctx); err != nil {
		return err
	}
	if err := r.trash.Discard(r.snapshotDir(snap.ID)); err != nil {
		return err
	}
	if err := faultRemoveMoved.At(ctx); err != nil {
		return err
	}
	r.index.quota.End(snap.Project)
	// The target may be someone else's directory, or gone.
	switch err := unix.Rmdir(snap.Target); err {
	case nil, unix.ENOENT, unix.ENOTEMPTY, unix.EEXIST, unix.EBUSY, unix.ENOTDIR:
	default:
		return fmt.Errorf("remove %s: %w", snap.Target, err)
	}
	return faultRemoveDiscarded.At(ctx)
}

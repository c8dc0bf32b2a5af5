package container

import (
	"context"
	"errors"
	"path/filepath"

	"github.com/coracle-project/coracle/pod/mounts"
	"github.com/coracle-project/coracle/pod/plugins"
	"github.com/coracle-project/coracle/pod/state"
)

// Remove deletes a container, killing it if it runs.
func (cs *Containers) Remove(ctx context.Context, e *state.ContainerEntry) error {
	return cs.ops.Do(ctx, "remove-container/"+e.ID, removeLimit, func(ctx context.Context) error {
		for {
			if err := cs.Stop(ctx, e, 0); err != nil {
				return err
			}
			removed, err := cs.removeStopped(ctx, e)
			if removed || err != nil {
				return err
			}
			// It was started between stop and our turn.
		}
	})
}

func (cs *Containers) removeStopped(ctx context.Context, e *state.ContainerEntry) (removed bool, err error) {
	if err := e.Turn.Take(ctx); err != nil {
		return false, err
	}
	defer e.Turn.Give()
	if e.IsGone() {
		return true, nil
	}
	if e.Get().Running() {
		return false, nil
	}
	if err := e.Intend(func(r *state.ContainerRecord) { r.Phase = state.ContainerRemoving }); err != nil {
		return false, err
	}
	if err := cs.FaultAt(ctx, faultRemoveContainerRecorded); err != nil {
		return false, err
	}
	_ = cs.Notify.Container(ctx, plugins.ContainerRemoved, e) // logged
	if err := cs.dropContainer(ctx, e); err != nil {
		// No one can name it any more, so it is ours to finish.
		cs.queueDrop(e)
		return false, err
	}
	return true, nil
}

// queueDrop has a half-made or half-removed container deleted in the background.
func (cs *Containers) queueDrop(e *state.ContainerEntry) {
	cs.Containers.Release(e)
	cs.Clean.Queue("container", e.ID, func(ctx context.Context) error {
		if err := e.Turn.Take(ctx); err != nil {
			return err
		}
		defer e.Turn.Give()
		return cs.dropContainer(ctx, e)
	})
}

// dropContainer frees everything a container has and forgets it. It can be called at
// any point of its life at which it should not run, and any number of times.
func (cs *Containers) dropContainer(ctx context.Context, e *state.ContainerEntry) error {
	if e.IsGone() {
		return nil
	}
	rec := e.Get()
	// Only a container that was to be started can be known to the shim (StartedAt is
	// set with the intent). One whose start failed may run if killing it failed,
	// too; one whose start was cut off may have become known late.
	if !rec.StartedAt.IsZero() {
		if err := cs.Exits.End(ctx, rec.PodID, e.ID); err != nil {
			return err
		}
	}
	if err := cs.FaultAt(ctx, faultRemoveContainerEnded); err != nil {
		return err
	}
	if err := errors.Join(cs.Snapshots.Remove(ctx, e.ID), cs.removeVolumes(ctx, e)); err != nil {
		return err
	}
	if err := cs.FaultAt(ctx, faultRemoveContainerSnapshot); err != nil {
		return err
	}
	// What is still mounted must not be deleted through.
	if err := mounts.Detach(filepath.Join(cs.Dirs.Containers().Of(e.ID), "rootfs")); err != nil {
		return err
	}
	if err := e.Erase(); err != nil {
		return err
	}
	cs.Containers.Remove(e)
	cs.SELinux.Release(e.Get().Labels)
	cs.Readings.ForgetContainer(e.ID)
	return nil
}

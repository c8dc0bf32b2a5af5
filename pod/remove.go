package pod

import (
	"context"
	"errors"
	"path/filepath"

	"golang.org/x/sync/errgroup"

	"github.com/coracle-project/coracle/pod/errdefs"
	"github.com/coracle-project/coracle/pod/plugins"
	"github.com/coracle-project/coracle/pod/state"
)

// Remove stops the pod if need be, removes its containers and forgets it. Removing an
// unknown pod succeeds. What is slow goes in the background, as with Stop.
func (m *Manager) Remove(ctx context.Context, podID string) error {
	e, err := m.pods.Find(podID)
	if errors.Is(err, errdefs.ErrNotFound) {
		if u, ok := m.findUnmanaged(UnmanagedPod, podID); ok {
			return errdefs.During("remove pod", u.ID, m.removeUnmanaged(ctx, u))
		}
		return nil
	}
	if err != nil {
		return err
	}
	return errdefs.During("remove pod", e.ID, m.ops.Do(ctx, "remove-pod/"+e.ID, removeLimit, func(ctx context.Context) error {
		if err := e.Turn.Take(ctx); err != nil {
			return err
		}
		defer e.Turn.Give()
		return m.removePod(ctx, e)
	}))
}

func (m *Manager) removePod(ctx context.Context, e *state.PodEntry) error {
	if e.Get().Phase == state.PodRemoving {
		return nil // another call did it before our turn came
	}
	if err := m.stopPod(ctx, e); err != nil {
		return err
	}
	var tasks errgroup.Group
	unmanaged := m.unmanagedIn(e.ID) // first: one that is adopted meanwhile is in both lists, not in neither
	for _, ce := range state.ContainersOf(m.containers, e.ID) {
		tasks.Go(func() error { return errdefs.During("container", ce.ID, m.removeContainer(ctx, ce)) })
	}
	for _, u := range unmanaged {
		tasks.Go(func() error { return errdefs.During("container", u.ID, m.dropUnmanagedContainer(ctx, u)) })
	}
	if err := tasks.Wait(); err != nil {
		return err
	}
	if err := m.faultAt(ctx, faultRemoveContainers); err != nil {
		return err
	}
	if err := e.Intend(func(r *state.PodRecord) { r.Phase = state.PodRemoving }); err != nil {
		return err
	}
	m.pods.Release(e)
	_ = m.notify.Pod(ctx, plugins.PodRemoved, e.Get().Value()) // logged
	m.queueCleaning(e)
	return m.faultAt(ctx, faultRemoveRecorded)
}

// RemoveContainer deletes a container, killing it if it runs. Removing an unknown
// container succeeds.
func (m *Manager) RemoveContainer(ctx context.Context, id string) error {
	e, err := m.containers.Find(id)
	if errors.Is(err, errdefs.ErrNotFound) {
		if u, ok := m.findUnmanaged(UnmanagedContainer, id); ok {
			return errdefs.During("remove container", u.ID, m.removeUnmanaged(ctx, u))
		}
		return nil
	}
	if err != nil {
		return err
	}
	return errdefs.During("remove container", e.ID, m.removeContainer(ctx, e))
}

func (m *Manager) removeContainer(ctx context.Context, e *state.ContainerEntry) error {
	return m.ops.Do(ctx, "remove-container/"+e.ID, removeLimit, func(ctx context.Context) error {
		for {
			if err := m.stopContainer(ctx, e, 0); err != nil {
				return err
			}
			removed, err := m.removeStopped(ctx, e)
			if removed || err != nil {
				return err
			}
			// It was started between stop and our turn.
		}
	})
}

func (m *Manager) removeStopped(ctx context.Context, e *state.ContainerEntry) (removed bool, err error) {
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
	if err := m.faultAt(ctx, faultRemoveContainerRecorded); err != nil {
		return false, err
	}
	_ = m.notify.Container(ctx, plugins.ContainerRemoved, e) // logged
	if err := m.dropContainer(ctx, e); err != nil {
		// No one can name it any more, so it is ours to finish.
		m.queueDrop(e)
		return false, err
	}
	return true, nil
}

// queueDrop has a half-made or half-removed container deleted in the background.
func (m *Manager) queueDrop(e *state.ContainerEntry) {
	m.containers.Release(e)
	m.clean.Queue("container", e.ID, func(ctx context.Context) error {
		if err := e.Turn.Take(ctx); err != nil {
			return err
		}
		defer e.Turn.Give()
		return m.dropContainer(ctx, e)
	})
}

// dropContainer frees everything a container has and forgets it. It can be called at
// any point of its life at which it should not run, and any number of times.
func (m *Manager) dropContainer(ctx context.Context, e *state.ContainerEntry) error {
	if e.IsGone() {
		return nil
	}
	rec := e.Get()
	// Only a container that was to be started can be known to the shim (StartedAt is
	// set with the intent). One whose start failed may run all the same, if killing
	// it failed too; one whose start was cut off may have become known late.
	if !rec.StartedAt.IsZero() {
		if err := m.exits.End(ctx, rec.PodID, e.ID); err != nil {
			return err
		}
	}
	if err := m.faultAt(ctx, faultRemoveContainerEnded); err != nil {
		return err
	}
	if err := errors.Join(m.Snapshots.Remove(ctx, e.ID), m.removeVolumes(ctx, e)); err != nil {
		return err
	}
	if err := m.faultAt(ctx, faultRemoveContainerSnapshot); err != nil {
		return err
	}
	// What is still mounted must not be deleted through.
	if err := unmount(filepath.Join(m.dirs.Containers().Of(e.ID), "rootfs")); err != nil {
		return err
	}
	if err := e.Erase(); err != nil {
		return err
	}
	m.containers.Remove(e)
	m.selinux.Release(e.Get().Labels)
	m.readings.ForgetContainer(e.ID)
	return nil
}

package pod

import (
	"context"
	"errors"
	"path/filepath"

	"golang.org/x/sync/errgroup"

	"github.com/coracle-project/coracle/pod/errdefs"
)

// Remove stops the pod if need be, removes its containers and forgets it. Removing an
// unknown pod succeeds. What is slow goes in the background, as with Stop.
func (m *Manager) Remove(ctx context.Context, podID string) error {
	e, err := m.pods.find(podID)
	if errors.Is(err, errdefs.ErrNotFound) {
		if u, ok := m.findUnmanaged(UnmanagedPod, podID); ok {
			return errdefs.During("remove pod", u.ID, m.removeUnmanaged(ctx, u))
		}
		return nil
	}
	if err != nil {
		return err
	}
	return errdefs.During("remove pod", e.id, m.do(ctx, "remove-pod/"+e.id, removeLimit, func(ctx context.Context) error {
		if err := e.turn.take(ctx); err != nil {
			return err
		}
		defer e.turn.give()
		return m.removePod(ctx, e)
	}))
}

func (m *Manager) removePod(ctx context.Context, e *entry[podRecord]) error {
	if e.get().Phase == podRemoving {
		return nil // another call did it before our turn came
	}
	if err := m.stopPod(ctx, e); err != nil {
		return err
	}
	var tasks errgroup.Group
	unmanaged := m.unmanagedIn(e.id) // first: one that is adopted meanwhile is in both lists, not in neither
	for _, ce := range m.containersOf(e.id) {
		tasks.Go(func() error { return errdefs.During("container", ce.id, m.removeContainer(ctx, ce)) })
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
	if err := e.intend(func(r *podRecord) { r.Phase = podRemoving }); err != nil {
		return err
	}
	m.pods.release(e)
	_ = m.tell(ctx, PodRemoved, e.get().value()) // logged
	m.queueCleaning(e)
	return m.faultAt(ctx, faultRemoveRecorded)
}

// RemoveContainer deletes a container, killing it if it runs. Removing an unknown
// container succeeds.
func (m *Manager) RemoveContainer(ctx context.Context, id string) error {
	e, err := m.containers.find(id)
	if errors.Is(err, errdefs.ErrNotFound) {
		if u, ok := m.findUnmanaged(UnmanagedContainer, id); ok {
			return errdefs.During("remove container", u.ID, m.removeUnmanaged(ctx, u))
		}
		return nil
	}
	if err != nil {
		return err
	}
	return errdefs.During("remove container", e.id, m.removeContainer(ctx, e))
}

func (m *Manager) removeContainer(ctx context.Context, e *entry[containerRecord]) error {
	return m.do(ctx, "remove-container/"+e.id, removeLimit, func(ctx context.Context) error {
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

func (m *Manager) removeStopped(ctx context.Context, e *entry[containerRecord]) (removed bool, err error) {
	if err := e.turn.take(ctx); err != nil {
		return false, err
	}
	defer e.turn.give()
	if e.isGone() {
		return true, nil
	}
	if e.get().running() {
		return false, nil
	}
	if err := e.intend(func(r *containerRecord) { r.Phase = containerRemoving }); err != nil {
		return false, err
	}
	if err := m.faultAt(ctx, faultRemoveContainerRecorded); err != nil {
		return false, err
	}
	_ = m.tellContainer(ctx, ContainerRemoved, e) // logged
	if err := m.dropContainer(ctx, e); err != nil {
		// No one can name it any more, so it is ours to finish.
		m.queueDrop(e)
		return false, err
	}
	return true, nil
}

// queueDrop has a half-made or half-removed container deleted in the background.
func (m *Manager) queueDrop(e *entry[containerRecord]) {
	m.containers.release(e)
	m.clean.Queue("container", e.id, func(ctx context.Context) error {
		if err := e.turn.take(ctx); err != nil {
			return err
		}
		defer e.turn.give()
		return m.dropContainer(ctx, e)
	})
}

// dropContainer frees everything a container has and forgets it. It can be called at
// any point of its life at which it should not run, and any number of times.
func (m *Manager) dropContainer(ctx context.Context, e *entry[containerRecord]) error {
	if e.isGone() {
		return nil
	}
	rec := e.get()
	// Only a container that was to be started can be known to the shim (StartedAt is
	// set with the intent). One whose start failed may run all the same, if killing
	// it failed too; one whose start was cut off may have become known late.
	if !rec.StartedAt.IsZero() {
		if err := m.end(ctx, rec.PodID, e.id); err != nil {
			return err
		}
	}
	if err := m.faultAt(ctx, faultRemoveContainerEnded); err != nil {
		return err
	}
	if err := errors.Join(m.Snapshots.Remove(ctx, e.id), m.removeVolumes(ctx, e)); err != nil {
		return err
	}
	if err := m.faultAt(ctx, faultRemoveContainerSnapshot); err != nil {
		return err
	}
	// What is still mounted must not be deleted through.
	if err := unmount(filepath.Join(m.containerDir().Of(e.id), "rootfs")); err != nil {
		return err
	}
	if err := e.erase(); err != nil {
		return err
	}
	m.containers.remove(e)
	m.releaseLevel(e.get().Labels)
	m.meters.forgetContainer(e.id)
	return nil
}

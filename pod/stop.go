package pod

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sync/errgroup"

	"github.com/coracle-project/coracle/pod/errdefs"
)

// Stop kills all containers of the pod, disconnects it and lets its namespaces go. The
// record stays, NotReady. Stopping a stopped or unknown pod succeeds.
//
// When it returns nothing of the pod runs and its host ports are free. What is slow
// and seen by no one (links, addresses, namespaces) goes in the background; the record
// says so, and recovery goes on with it.
func (m *Manager) Stop(ctx context.Context, podID string) error {
	e, err := m.pods.find(podID)
	if errors.Is(err, errdefs.ErrNotFound) {
		if u, ok := m.findUnmanaged(UnmanagedPod, podID); ok {
			return errdefs.During("stop pod", u.ID, m.stopUnmanaged(ctx, u))
		}
		return nil
	}
	if err != nil {
		return err
	}
	return errdefs.During("stop pod", e.id, m.do(ctx, "stop-pod/"+e.id, stopLimit, func(ctx context.Context) error {
		if err := e.turn.take(ctx); err != nil {
			return err
		}
		defer e.turn.give()
		return m.stopPod(ctx, e)
	}))
}

// stopPod is Stop for one that has the pod's turn.
func (m *Manager) stopPod(ctx context.Context, e *entry[podRecord]) error {
	switch e.get().Phase {
	case podStopped, podRemoving:
		return nil
	}
	// From here on no container of the pod is created or started: those
	// operations look at the pod after they have shown themselves to us.
	if err := e.intend(func(r *podRecord) { r.Phase = podStopping }); err != nil {
		return err
	}
	if err := m.faultAt(ctx, faultStopRecorded); err != nil {
		return err
	}
	c := &e.get().Config
	var tasks errgroup.Group
	unmanaged := m.unmanagedIn(e.id) // first, as in removePod
	for _, ce := range m.containersOf(e.id) {
		tasks.Go(func() error { return errdefs.During("container", ce.id, m.stopContainer(ctx, ce, 0)) })
	}
	for _, u := range unmanaged {
		tasks.Go(func() error { return errdefs.During("container", u.ID, m.end(ctx, e.id, u.ID)) })
	}
	// A host port must be free for the next pod when Stop has returned.
	if np := m.networkPod(e.id, c); len(np.Ports) > 0 && !c.HostNetwork() {
		tasks.Go(func() error { return m.Network.Teardown(ctx, np) })
	}
	if err := tasks.Wait(); err != nil {
		return err
	}
	// After the containers: one being made may just have started the init.
	if err := m.endInit(ctx, e); err != nil {
		return errdefs.During("init of pod", e.id, err)
	}
	if err := m.faultAt(ctx, faultStopKilled); err != nil {
		return err
	}
	if err := e.intend(func(r *podRecord) { r.Phase, r.Init, r.InitPid = podStopped, false, 0 }); err != nil {
		return err
	}
	_ = m.tell(ctx, PodStopped, e.get().value()) // logged
	m.queueCleaning(e)
	return m.faultAt(ctx, faultStopStopped)
}

// containersOf returns all containers of a pod, half-made and half-removed ones too.
func (m *Manager) containersOf(podID string) []*entry[containerRecord] {
	return m.containers.each(func(r *containerRecord) bool { return r.PodID == podID })
}

// queueCleaning has what is left of a stopped or removed pod cleaned up in the background.
func (m *Manager) queueCleaning(e *entry[podRecord]) {
	m.clean.Queue("pod", e.id, func(ctx context.Context) error {
		if err := e.tidy.take(ctx); err != nil {
			return err
		}
		defer e.tidy.give()
		return m.cleanPod(ctx, e)
	})
}

// cleanPod frees what a stopped pod still holds, and all of one being removed.
func (m *Manager) cleanPod(ctx context.Context, e *entry[podRecord]) error {
	if e.isGone() {
		return nil
	}
	if !e.get().Clean {
		if err := m.dropPodParts(ctx, e); err != nil {
			return err
		}
	}
	if e.get().Phase != podRemoving {
		return e.intend(func(r *podRecord) { r.Clean = true })
	}
	if err := m.faultAt(ctx, faultRemoveCleaned); err != nil {
		return err
	}
	if err := m.Shim.DeletePod(ctx, e.id); err != nil {
		return err
	}
	if err := e.erase(); err != nil {
		return err
	}
	m.pods.remove(e)
	m.releaseLevel(e.get().Labels)
	m.meters.forgetPod(e.id)
	return nil
}

// dropPodParts frees everything that a pod has outside its directory. It can be called
// at any point of a pod's life and any number of times.
func (m *Manager) dropPodParts(ctx context.Context, e *entry[podRecord]) error {
	c := &e.get().Config
	if err := m.endInit(ctx, e); err != nil {
		return err
	}
	if !c.HostNetwork() {
		if err := m.Network.Teardown(ctx, m.networkPod(e.id, c)); err != nil {
			return err
		}
	}
	if err := m.faultAt(ctx, faultCleanNetwork); err != nil {
		return err
	}
	if err := m.Namespaces.Remove(ctx, m.nsDir(e.id)); err != nil {
		return err
	}
	if err := m.faultAt(ctx, faultCleanNamespaces); err != nil {
		return err
	}
	// What is still mounted must not be deleted through.
	if err := unmount(m.podFiles(e.id)); err != nil {
		return err
	}
	if err := os.RemoveAll(filepath.Join(m.podDir().Of(e.id), "init")); err != nil {
		return err
	}
	return nil
}

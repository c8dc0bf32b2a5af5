package pod

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sync/errgroup"

	"github.com/coracle-project/coracle/pod/errdefs"
	"github.com/coracle-project/coracle/pod/plugins"
	"github.com/coracle-project/coracle/pod/state"
)

// Stop kills all containers of the pod, disconnects it and lets its namespaces go. The
// record stays, NotReady. Stopping a stopped or unknown pod succeeds.
//
// When it returns nothing of the pod runs and its host ports are free. What is slow
// and seen by no one (links, addresses, namespaces) goes in the background; the record
// says so, and recovery goes on with it.
func (m *Manager) Stop(ctx context.Context, podID string) error {
	e, err := m.pods.Find(podID)
	if errors.Is(err, errdefs.ErrNotFound) {
		if u, ok := m.findUnmanaged(UnmanagedPod, podID); ok {
			return errdefs.During("stop pod", u.ID, m.stopUnmanaged(ctx, u))
		}
		return nil
	}
	if err != nil {
		return err
	}
	return errdefs.During("stop pod", e.ID, m.ops.Do(ctx, "stop-pod/"+e.ID, stopLimit, func(ctx context.Context) error {
		if err := e.Turn.Take(ctx); err != nil {
			return err
		}
		defer e.Turn.Give()
		return m.stopPod(ctx, e)
	}))
}

// stopPod is Stop for one that has the pod's turn.
func (m *Manager) stopPod(ctx context.Context, e *state.PodEntry) error {
	switch e.Get().Phase {
	case state.PodStopped, state.PodRemoving:
		return nil
	}
	// From here on no container of the pod is created or started: those
	// operations look at the pod after they have shown themselves to us.
	if err := e.Intend(func(r *state.PodRecord) { r.Phase = state.PodStopping }); err != nil {
		return err
	}
	if err := m.faultAt(ctx, faultStopRecorded); err != nil {
		return err
	}
	c := &e.Get().Config
	var tasks errgroup.Group
	unmanaged := m.unmanagedIn(e.ID) // first, as in removePod
	for _, ce := range state.ContainersOf(m.containers, e.ID) {
		tasks.Go(func() error { return errdefs.During("container", ce.ID, m.stopContainer(ctx, ce, 0)) })
	}
	for _, u := range unmanaged {
		tasks.Go(func() error { return errdefs.During("container", u.ID, m.exits.End(ctx, e.ID, u.ID)) })
	}
	// A host port must be free for the next pod when Stop has returned.
	if np := m.networkPod(e.ID, c); len(np.Ports) > 0 && !c.HostNetwork() {
		tasks.Go(func() error { return m.Network.Teardown(ctx, np) })
	}
	if err := tasks.Wait(); err != nil {
		return err
	}
	// After the containers: one being made may just have started the init.
	if err := m.endInit(ctx, e); err != nil {
		return errdefs.During("init of pod", e.ID, err)
	}
	if err := m.faultAt(ctx, faultStopKilled); err != nil {
		return err
	}
	if err := e.Intend(func(r *state.PodRecord) { r.Phase, r.Init, r.InitPid = state.PodStopped, false, 0 }); err != nil {
		return err
	}
	_ = m.notify.Pod(ctx, plugins.PodStopped, e.Get().Value()) // logged
	m.queueCleaning(e)
	return m.faultAt(ctx, faultStopStopped)
}

// queueCleaning has what is left of a stopped or removed pod cleaned up in the background.
func (m *Manager) queueCleaning(e *state.PodEntry) {
	m.clean.Queue("pod", e.ID, func(ctx context.Context) error {
		if err := e.Tidy.Take(ctx); err != nil {
			return err
		}
		defer e.Tidy.Give()
		return m.cleanPod(ctx, e)
	})
}

// cleanPod frees what a stopped pod still holds, and all of one being removed.
func (m *Manager) cleanPod(ctx context.Context, e *state.PodEntry) error {
	if e.IsGone() {
		return nil
	}
	if !e.Get().Clean {
		if err := m.dropPodParts(ctx, e); err != nil {
			return err
		}
	}
	if e.Get().Phase != state.PodRemoving {
		return e.Intend(func(r *state.PodRecord) { r.Clean = true })
	}
	if err := m.faultAt(ctx, faultRemoveCleaned); err != nil {
		return err
	}
	if err := m.Shim.DeletePod(ctx, e.ID); err != nil {
		return err
	}
	if err := e.Erase(); err != nil {
		return err
	}
	m.pods.Remove(e)
	m.selinux.Release(e.Get().Labels)
	m.readings.ForgetPod(e.ID)
	return nil
}

// dropPodParts frees everything that a pod has outside its directory. It can be called
// at any point of a pod's life and any number of times.
func (m *Manager) dropPodParts(ctx context.Context, e *state.PodEntry) error {
	c := &e.Get().Config
	if err := m.endInit(ctx, e); err != nil {
		return err
	}
	if !c.HostNetwork() {
		if err := m.Network.Teardown(ctx, m.networkPod(e.ID, c)); err != nil {
			return err
		}
	}
	if err := m.faultAt(ctx, faultCleanNetwork); err != nil {
		return err
	}
	if err := m.Namespaces.Remove(ctx, m.dirs.NamespacesOf(e.ID)); err != nil {
		return err
	}
	if err := m.faultAt(ctx, faultCleanNamespaces); err != nil {
		return err
	}
	// What is still mounted must not be deleted through.
	if err := unmount(m.dirs.PodFiles(e.ID)); err != nil {
		return err
	}
	if err := os.RemoveAll(filepath.Join(m.dirs.Pods().Of(e.ID), "init")); err != nil {
		return err
	}
	return nil
}

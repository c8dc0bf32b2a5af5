package sandbox

import (
	"context"
	"os"
	"path/filepath"

	"golang.org/x/sync/errgroup"

	"github.com/coracle-project/coracle/pod/failure"
	"github.com/coracle-project/coracle/pod/mounts"
	"github.com/coracle-project/coracle/pod/plugins"
	"github.com/coracle-project/coracle/pod/state"
)

// Stop is Manager.Stop of package pod.
func (ps *Pods) Stop(ctx context.Context, e *state.PodEntry) error {
	return failure.During("stop pod", e.ID, ps.ops.Do(ctx, "stop-pod/"+e.ID, stopLimit, func(ctx context.Context) error {
		if err := e.Turn.Take(ctx); err != nil {
			return err
		}
		defer e.Turn.Give()
		return ps.stopPod(ctx, e)
	}))
}

// stopPod is Stop for one that has the pod's turn.
func (ps *Pods) stopPod(ctx context.Context, e *state.PodEntry) error {
	switch e.Get().Phase {
	case state.PodStopped, state.PodRemoving:
		return nil
	}
	// From here on no container of the pod is created or started: those
	// operations look at the pod after they have shown themselves to us.
	if err := e.Intend(func(r *state.PodRecord) { r.Phase = state.PodStopping }); err != nil {
		return err
	}
	if err := ps.FaultAt(ctx, faultStopRecorded); err != nil {
		return err
	}
	c := &e.Get().Config
	var tasks errgroup.Group
	tasks.Go(func() error { return ps.Containers.StopAll(ctx, e.ID) })
	// A host port must be free for the next pod when Stop has returned.
	if np := ps.networkPod(e.ID, c); len(np.Ports) > 0 && !c.HostNetwork() {
		tasks.Go(func() error { return ps.Network.Teardown(ctx, np) })
	}
	if err := tasks.Wait(); err != nil {
		return err
	}
	// After the containers: one being made may just have started the init.
	if err := ps.endInit(ctx, e); err != nil {
		return failure.During("init of pod", e.ID, err)
	}
	if err := ps.FaultAt(ctx, faultStopKilled); err != nil {
		return err
	}
	if err := e.Intend(func(r *state.PodRecord) { r.Phase, r.Init, r.InitPid = state.PodStopped, false, 0 }); err != nil {
		return err
	}
	_ = ps.Notify.Pod(ctx, plugins.PodStopped, e.Get().Value()) // logged
	ps.queueCleaning(e)
	return ps.FaultAt(ctx, faultStopStopped)
}

// queueCleaning has what is left of a stopped or removed pod cleaned up in the background.
func (ps *Pods) queueCleaning(e *state.PodEntry) {
	ps.Clean.Queue("pod", e.ID, func(ctx context.Context) error {
		if err := e.Tidy.Take(ctx); err != nil {
			return err
		}
		defer e.Tidy.Give()
		return ps.cleanPod(ctx, e)
	})
}

// cleanPod frees what a stopped pod still holds, and all of one being removed.
func (ps *Pods) cleanPod(ctx context.Context, e *state.PodEntry) error {
	if e.IsGone() {
		return nil
	}
	if !e.Get().Clean {
		if err := ps.dropPodParts(ctx, e); err != nil {
			return err
		}
	}
	if e.Get().Phase != state.PodRemoving {
		return e.Intend(func(r *state.PodRecord) { r.Clean = true })
	}
	if err := ps.FaultAt(ctx, faultRemoveCleaned); err != nil {
		return err
	}
	if err := ps.Shim.DeletePod(ctx, e.ID); err != nil {
		return err
	}
	if err := e.Erase(); err != nil {
		return err
	}
	ps.Pods.Remove(e)
	ps.SELinux.Release(e.Get().Labels)
	ps.Readings.ForgetPod(e.ID)
	return nil
}

// dropPodParts frees everything that a pod has outside its directory. It can be called
// at any point of a pod's life and any number of times.
func (ps *Pods) dropPodParts(ctx context.Context, e *state.PodEntry) error {
	c := &e.Get().Config
	if err := ps.endInit(ctx, e); err != nil {
		return err
	}
	if !c.HostNetwork() {
		if err := ps.Network.Teardown(ctx, ps.networkPod(e.ID, c)); err != nil {
			return err
		}
	}
	if err := ps.FaultAt(ctx, faultCleanNetwork); err != nil {
		return err
	}
	if err := ps.Namespaces.Remove(ctx, ps.Dirs.NamespacesOf(e.ID)); err != nil {
		return err
	}
	if err := ps.FaultAt(ctx, faultCleanNamespaces); err != nil {
		return err
	}
	// What is still mounted must not be deleted through.
	if err := mounts.Detach(ps.Dirs.PodFiles(e.ID)); err != nil {
		return err
	}
	if err := os.RemoveAll(filepath.Join(ps.Dirs.Pods().Of(e.ID), "init")); err != nil {
		return err
	}
	return nil
}

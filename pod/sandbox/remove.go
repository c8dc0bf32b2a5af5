package sandbox

import (
	"context"

	"github.com/coracle-project/coracle/pod/failure"
	"github.com/coracle-project/coracle/pod/plugins"
	"github.com/coracle-project/coracle/pod/state"
)

// Remove is Manager.Remove of package pod.
func (ps *Pods) Remove(ctx context.Context, e *state.PodEntry) error {
	return failure.During("remove pod", e.ID, ps.ops.Do(ctx, "remove-pod/"+e.ID, removeLimit, func(ctx context.Context) error {
		if err := e.Turn.Take(ctx); err != nil {
			return err
		}
		defer e.Turn.Give()
		return ps.removePod(ctx, e)
	}))
}

func (ps *Pods) removePod(ctx context.Context, e *state.PodEntry) error {
	if e.Get().Phase == state.PodRemoving {
		return nil // another call did it before our turn came
	}
	if err := ps.stopPod(ctx, e); err != nil {
		return err
	}
	if err := ps.Containers.RemoveAll(ctx, e.ID); err != nil {
		return err
	}
	if err := ps.FaultAt(ctx, faultRemoveContainers); err != nil {
		return err
	}
	if err := e.Intend(func(r *state.PodRecord) { r.Phase = state.PodRemoving }); err != nil {
		return err
	}
	ps.Pods.Release(e)
	_ = ps.Notify.Pod(ctx, plugins.PodRemoved, e.Get().Value()) // logged
	ps.queueCleaning(e)
	return ps.FaultAt(ctx, faultRemoveRecorded)
}

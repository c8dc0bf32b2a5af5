package container

import (
	"context"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/coracle-project/coracle/pod/errdefs"
	"github.com/coracle-project/coracle/pod/failure"
	"github.com/coracle-project/coracle/pod/plugins"
	"github.com/coracle-project/coracle/pod/podconfig"
	"github.com/coracle-project/coracle/pod/spec"
	"github.com/coracle-project/coracle/pod/state"
)

// UpdateResources is Manager.UpdateResources of package pod.
func (cs *Containers) UpdateResources(ctx context.Context, id string, r podconfig.Resources) error {
	e, err := cs.Containers.Find(id)
	if err != nil {
		return failure.During("update container", id, err)
	}
	if err := r.Validate(); err != nil {
		return failure.During("update container", e.ID, err)
	}
	return failure.During("update container", e.ID, cs.Life.Run(context.WithoutCancel(ctx), updateLimit, func(ctx context.Context) error {
		if err := e.Turn.Take(ctx); err != nil {
			return err
		}
		defer e.Turn.Give()
		return cs.updateResources(ctx, e, r)
	}))
}

func (cs *Containers) updateResources(ctx context.Context, e *state.ContainerEntry, r podconfig.Resources) error {
	rec := e.Get()
	next := rec.Config.Resources.With(r)
	if err := next.Validate(); err != nil {
		return err
	}
	if rec.Phase != state.ContainerCreated && rec.Phase != state.ContainerRunning {
		return errdefs.Errorf(errdefs.ErrPrecondition, "it is %s, only a created or running container has limits to change", rec.Phase)
	}
	limits := next.Change(r).On(podconfig.LimitsOfHost()).Linux()
	if err := cs.Notify.AdjustUpdate(ctx, e, limits); err != nil {
		return err
	}
	if rec.Phase == state.ContainerRunning {
		if err := cs.Shim.Update(ctx, rec.PodID, e.ID, limits); err != nil {
			return err
		}
		if err := cs.FaultAt(ctx, faultUpdateChanged); err != nil {
			return err
		}
	}
	if err := spec.RewriteResources(cs.Dirs.Containers().Of(e.ID), limits); err != nil {
		return err
	}
	if err := cs.FaultAt(ctx, faultUpdateRewritten); err != nil {
		return err
	}
	if err := e.Update(func(r *state.ContainerRecord) { r.Config.Resources = next }); err != nil {
		return err
	}
	return cs.Notify.Container(ctx, plugins.ContainerUpdated, e)
}

// UpdatePlugged changes limits that a plugin wants changed. They are those of the container that
// runs; its configuration stays what the caller has asked for.
func (cs *Containers) UpdatePlugged(ctx context.Context, id string, r *specs.LinuxResources) error {
	e, err := cs.Containers.Find(id)
	if err != nil {
		return failure.During("update container", id, err)
	}
	rec := e.Get()
	if rec.Phase != state.ContainerRunning {
		return failure.During("update container", e.ID, errdefs.Errorf(errdefs.ErrPrecondition, "it is %s, not running", rec.Phase))
	}
	// Plugins set no limit, and whatever is to be made waits while a new one is told what there is.
	return failure.During("update container", e.ID, cs.Life.Run(ctx, updateLimit, func(ctx context.Context) error {
		return cs.Shim.Update(ctx, rec.PodID, e.ID, r)
	}))
}

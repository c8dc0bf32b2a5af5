package pod

import (
	"context"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/coracle-project/coracle/pod/errdefs"
	"github.com/coracle-project/coracle/pod/plugins"
	"github.com/coracle-project/coracle/pod/podconfig"
	"github.com/coracle-project/coracle/pod/spec"
	"github.com/coracle-project/coracle/pod/state"
)

// UpdateResources changes the limits of a created or running container; zero fields stay
// as they are. The new limits are recorded, and are in force at once or from the start
// on. annotations are taken for the caller's sake and steer nothing. The score for the
// out-of-memory killer belongs to a process that runs already and is not changed.
func (m *Manager) UpdateResources(ctx context.Context, id string, r podconfig.Resources, annotations map[string]string) error {
	e, err := m.containers.Find(id)
	if err != nil {
		return errdefs.During("update container", id, err)
	}
	if err := r.Validate(); err != nil {
		return errdefs.During("update container", e.ID, err)
	}
	_ = annotations
	return errdefs.During("update container", e.ID, m.life.Run(context.WithoutCancel(ctx), updateLimit, func(ctx context.Context) error {
		if err := e.Turn.Take(ctx); err != nil {
			return err
		}
		defer e.Turn.Give()
		return m.updateResources(ctx, e, r)
	}))
}

func (m *Manager) updateResources(ctx context.Context, e *state.ContainerEntry, r podconfig.Resources) error {
	rec := e.Get()
	next := rec.Config.Resources.With(r)
	if err := next.Validate(); err != nil {
		return err
	}
	switch rec.Phase {
	case state.ContainerRunning:
		limits := next.Change(r).On(podconfig.LimitsOfHost()).Linux()
		if err := m.notify.AdjustUpdate(ctx, e, limits); err != nil {
			return err
		}
		if err := m.Shim.Update(ctx, rec.PodID, e.ID, limits); err != nil {
			return err
		}
		if err := faultUpdateChanged.At(ctx); err != nil {
			return err
		}
	case state.ContainerCreated:
	default:
		return errdefs.Errorf(errdefs.ErrPrecondition, "it is %s, only a created or running container has limits to change", rec.Phase)
	}
	if err := spec.RewriteResources(m.dirs.Containers().Of(e.ID), next); err != nil {
		return err
	}
	if err := faultUpdateRewritten.At(ctx); err != nil {
		return err
	}
	if err := e.Update(func(r *state.ContainerRecord) { r.Config.Resources = next }); err != nil {
		return err
	}
	return m.notify.Container(ctx, plugins.ContainerUpdated, e)
}

// UpdatePlugged changes limits that a plugin wants changed. They are those of the container that
// runs; its configuration stays what the caller has asked for.
func (m *Manager) UpdatePlugged(ctx context.Context, id string, r *specs.LinuxResources) error {
	e, err := m.containers.Find(id)
	if err != nil {
		return errdefs.During("update container", id, err)
	}
	rec := e.Get()
	if rec.Phase != state.ContainerRunning {
		return errdefs.During("update container", e.ID, errdefs.Errorf(errdefs.ErrPrecondition, "it is %s, not running", rec.Phase))
	}
	// Plugins set no limit, and whatever is to be made waits while a new one is told what there is.
	return errdefs.During("update container", e.ID, m.life.Run(ctx, updateLimit, func(ctx context.Context) error {
		return m.Shim.Update(ctx, rec.PodID, e.ID, r)
	}))
}

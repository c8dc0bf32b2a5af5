package container

import (
	"context"
	"errors"
	"time"

	"github.com/coracle-project/coracle/pod/state"
	"github.com/coracle-project/coracle/shim/client"
)

// Recover runs with the container's turn held. inShim is false if the shim is known not to
// have the container.
func (cs *Containers) Recover(ctx context.Context, e *state.ContainerEntry, inShim bool) error {
	cs.Checkpoints.DropLater(e.ID, e.Get().Saving)
	rec := e.Get()
	switch rec.Phase {
	case state.ContainerMaking, state.ContainerRemoving:
		cs.queueDrop(e)
		return nil
	case state.ContainerCreated:
		return nil
	case state.ContainerExited:
		if inShim {
			cs.Clean.Queue("exited container", e.ID, func(ctx context.Context) error { return cs.Exits.End(ctx, rec.PodID, e.ID) })
		}
		return nil
	}
	s := client.Status{}
	err := error(client.ErrNotFound)
	if inShim {
		s, err = cs.Shim.Status(ctx, rec.PodID, e.ID)
	}
	switch {
	case errors.Is(err, client.ErrNotFound) && rec.Phase == state.ContainerStarting:
		return cs.startCutOff(e)
	case errors.Is(err, client.ErrNotFound):
		cs.Lost(e)
		return nil
	case err != nil:
		return err
	case s.State == client.StateStopped:
		cs.Exited(e, s.ExitCode, s.ExitedAt, s.OOMKilled)
		return nil
	case s.State == client.StateCreated:
		if err := cs.Exits.EndLeftover(ctx, rec.PodID, e.ID); err != nil {
			return err
		}
		return cs.startCutOff(e)
	}
	if rec.Phase != state.ContainerRunning || rec.Pid != s.Pid {
		if err := e.Intend(func(r *state.ContainerRecord) {
			if r.Running() {
				r.Phase, r.Pid = state.ContainerRunning, s.Pid
			}
		}); err != nil {
			return err
		}
	}
	if rec.Frozen {
		if err := cs.Checkpoints.Thaw(ctx, e); err != nil {
			return err
		}
	}
	if !rec.StopAt.IsZero() {
		cs.finishStop(e, rec.UntilKill())
	}
	return nil
}

// startCutOff sets a container whose start was interrupted back to created. StartedAt stays,
// because the shim may still process the last daemon's call.
func (cs *Containers) startCutOff(e *state.ContainerEntry) error {
	return e.Intend(func(r *state.ContainerRecord) { r.Phase = state.ContainerCreated })
}

// finishStop continues a stop that the last daemon began.
func (cs *Containers) finishStop(e *state.ContainerEntry, grace time.Duration) {
	cs.Life.Start(func(ctx context.Context) {
		if err := cs.Stop(ctx, e, max(grace, 0)); err != nil && ctx.Err() == nil {
			cs.Log.Error("stop from before the restart failed", "container", e.ID, "err", err)
		}
	})
}

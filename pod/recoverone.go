package pod

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"time"

	"github.com/coracle-project/coracle/pod/state"
	"github.com/coracle-project/coracle/shim/client"
)

// recoverContainer runs with the container's turn held. inShim is false if the shim is known not to
// have the container.
func (m *Manager) recoverContainer(ctx context.Context, e *state.ContainerEntry, inShim bool) error {
	m.checkpoints.DropLater(e.ID, e.Get().Saving)
	rec := e.Get()
	switch rec.Phase {
	case state.ContainerMaking, state.ContainerRemoving:
		m.queueDrop(e)
		return nil
	case state.ContainerCreated:
		return nil
	case state.ContainerExited:
		if inShim {
			m.clean.Queue("exited container", e.ID, func(ctx context.Context) error { return m.exits.End(ctx, rec.PodID, e.ID) })
		}
		return nil
	}
	s := client.Status{}
	err := error(client.ErrNotFound)
	if inShim {
		s, err = m.Shim.Status(ctx, rec.PodID, e.ID)
	}
	switch {
	case errors.Is(err, client.ErrNotFound) && rec.Phase == state.ContainerStarting:
		return m.startCutOff(e)
	case errors.Is(err, client.ErrNotFound):
		m.lost(e)
		return nil
	case err != nil:
		return err
	case s.State == client.StateStopped:
		m.exited(e, s.ExitCode, s.ExitedAt, s.OOMKilled)
		return nil
	case s.State == client.StateCreated:
		if err := m.endLeftover(ctx, rec.PodID, e.ID, true); err != nil {
			return err
		}
		return m.startCutOff(e)
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
		if err := m.checkpoints.Thaw(ctx, e); err != nil {
			return err
		}
	}
	if !rec.StopAt.IsZero() {
		m.finishStop(e, rec.UntilKill())
	}
	return nil
}

// startCutOff sets a container whose start was interrupted back to created. StartedAt stays,
// because the shim may still process the last daemon's call.
func (m *Manager) startCutOff(e *state.ContainerEntry) error {
	return e.Intend(func(r *state.ContainerRecord) { r.Phase = state.ContainerCreated })
}

// finishStop continues a stop that the last daemon began.
func (m *Manager) finishStop(e *state.ContainerEntry, grace time.Duration) {
	m.life.Start(func(ctx context.Context) {
		if err := m.stopContainer(ctx, e, max(grace, 0)); err != nil && ctx.Err() == nil {
			m.log.Error("stop from before the restart failed", "id", e.ID, "err", err)
		}
	})
}

func (m *Manager) recoverPod(ctx context.Context, e *state.PodEntry, initInShim bool) error {
	rec := e.Get()
	switch rec.Phase {
	case state.PodMaking:
		m.clean.Queue("half-made pod", e.ID, func(ctx context.Context) error {
			if err := m.undoPod(ctx, e); err != nil {
				return err
			}
			return m.Shim.DeletePod(ctx, e.ID)
		})
	case state.PodRemoving:
		m.queueCleaning(e)
	case state.PodStopping:
		m.clean.Queue("half-stopped pod", e.ID, func(ctx context.Context) error {
			if err := e.Turn.Take(ctx); err != nil {
				return err
			}
			defer e.Turn.Give()
			return m.stopPod(ctx, e)
		})
	case state.PodStopped:
		if !rec.Clean {
			m.queueCleaning(e)
		}
	case state.PodReady:
		return m.recoverReady(ctx, e, initInShim)
	}
	return nil
}

// recoverReady checks that everything a ready pod needs still exists.
func (m *Manager) recoverReady(ctx context.Context, e *state.PodEntry, initInShim bool) error {
	rec := e.Get()
	for _, path := range []string{rec.Namespaces.Net, rec.Namespaces.IPC, rec.Namespaces.UTS, rec.Namespaces.User} {
		if path == "" {
			continue
		}
		if _, err := os.Stat(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		} else if err != nil {
			m.log.Error("namespace of pod is gone; the pod is not ready any more", "id", e.ID, "err", err)
			return e.Intend(func(r *state.PodRecord) { r.Phase = state.PodBroken })
		}
	}
	if !rec.Init {
		return nil
	}
	s, err := client.Status{}, error(client.ErrNotFound)
	if initInShim {
		s, err = m.Shim.Status(ctx, e.ID, e.ID)
	}
	switch {
	case err != nil && !errors.Is(err, client.ErrNotFound):
		return err
	case err == nil && s.State == client.StateRunning:
		return e.Intend(func(r *state.PodRecord) { r.InitPid = s.Pid })
	case rec.InitPid != 0:
		m.initExited(e)
		return nil
	}
	// The init was being started: no container is in its namespace yet. Init stays set, because the
	// shim may still process the last daemon's call.
	return m.endLeftover(ctx, e.ID, e.ID, initInShim)
}

// endLeftover kills and frees a container in the shim, if it exists there.
func (m *Manager) endLeftover(ctx context.Context, podID, id string, inShim bool) error {
	if !inShim {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, leftoverLimit)
	defer cancel()
	return m.exits.End(ctx, podID, id)
}

// leftoverLimit is how long recovery waits for one container to die.
const leftoverLimit = 5 * time.Second

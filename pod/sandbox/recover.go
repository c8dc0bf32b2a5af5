package sandbox

import (
	"context"
	"errors"
	"io/fs"
	"os"

	"github.com/coracle-project/coracle/pod/state"
	"github.com/coracle-project/coracle/shim/client"
)

// Recover runs with the pod's turn held. initInShim is false if the shim is known not to have the
// pod's init.
func (ps *Pods) Recover(ctx context.Context, e *state.PodEntry, initInShim bool) error {
	rec := e.Get()
	switch rec.Phase {
	case state.PodMaking:
		ps.Clean.Queue("half-made pod", e.ID, func(ctx context.Context) error {
			if err := ps.undoPod(ctx, e); err != nil {
				return err
			}
			return ps.Shim.DeletePod(ctx, e.ID)
		})
	case state.PodRemoving:
		ps.queueCleaning(e)
	case state.PodStopping:
		ps.Clean.Queue("half-stopped pod", e.ID, func(ctx context.Context) error {
			if err := e.Turn.Take(ctx); err != nil {
				return err
			}
			defer e.Turn.Give()
			return ps.stopPod(ctx, e)
		})
	case state.PodStopped:
		if !rec.Clean {
			ps.queueCleaning(e)
		}
	case state.PodReady:
		return ps.recoverReady(ctx, e, initInShim)
	}
	return nil
}

// recoverReady checks that everything a ready pod needs still exists.
func (ps *Pods) recoverReady(ctx context.Context, e *state.PodEntry, initInShim bool) error {
	rec := e.Get()
	for _, path := range []string{rec.Namespaces.Net, rec.Namespaces.IPC, rec.Namespaces.UTS, rec.Namespaces.User} {
		if path == "" {
			continue
		}
		if _, err := os.Stat(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		} else if err != nil {
			ps.Log.Error("namespace of pod is gone; the pod is not ready any more", "pod", e.ID, "err", err)
			return e.Intend(func(r *state.PodRecord) { r.Phase = state.PodBroken })
		}
	}
	if !rec.Init {
		return nil
	}
	s, err := client.Status{}, error(client.ErrNotFound)
	if initInShim {
		s, err = ps.Shim.Status(ctx, e.ID, e.ID)
	}
	switch {
	case err != nil && !errors.Is(err, client.ErrNotFound):
		return err
	case err == nil && s.State == client.StateRunning:
		return e.Intend(func(r *state.PodRecord) { r.InitPid = s.Pid })
	case rec.InitPid != 0:
		ps.InitExited(e)
		return nil
	}
	// The init was being started: no container is in its namespace yet. Init stays set, because the
	// shim may still process the last daemon's call.
	if !initInShim {
		return nil
	}
	return ps.Exits.EndLeftover(ctx, e.ID, e.ID)
}

package pod

import (
	"context"
	"errors"
	"time"

	"github.com/coracle-project/coracle/pod/life"
	"github.com/coracle-project/coracle/pod/plugins"
	"github.com/coracle-project/coracle/pod/state"
	"github.com/coracle-project/coracle/pod/table"
	"github.com/coracle-project/coracle/shim/client"
)

// watch applies the shim's events until the life ends or the shim client is closed.
func (m *Manager) watch(ctx context.Context) {
	events := m.Shim.Events()
	for {
		select {
		case ev, ok := <-events:
			if !ok {
				return
			}
			m.apply(ev)
		case <-ctx.Done():
			return
		}
	}
}

// apply notes one event. Of objects that are unknown or being removed only those who
// wait for their end want to know.
func (m *Manager) apply(ev client.Event) {
	if ev.Kind == client.EventReconnected {
		select {
		case m.reconnected <- struct{}{}:
		default: // a comparison is due already and will see the exit
		}
		return
	}
	if e := m.containers.Exact(ev.ID); e != nil {
		switch ev.Kind {
		case client.EventOOM:
			err := e.Observe(func(r *state.ContainerRecord) { r.OOMKilled = true })
			m.unrecorded(ev.ID, err)
		case client.EventExit:
			m.exited(e, ev.ExitCode, ev.ExitedAt, ev.OOMKilled)
		}
	} else if e := m.pods.Exact(ev.ID); e != nil && ev.Kind == client.EventExit {
		m.initExited(e)
	}
	if ev.Kind == client.EventExit {
		m.exits.Happened(ev.ID) // someone may wait for what is not in our books
	}
}

// exited notes the end of a container, once, and has the shim forget it in the
// background. at is zero if no one can know how it ended.
func (m *Manager) exited(e *state.ContainerEntry, code int32, at time.Time, oom bool) {
	if !e.Get().Running() {
		return
	}
	unknown := at.IsZero()
	if unknown {
		at = time.Now()
	}
	first := false
	err := e.Observe(func(r *state.ContainerRecord) {
		if first = r.Running(); first {
			r.Exit(code, at, oom)
			if unknown && !r.OOMKilled {
				r.Reason = "Unknown"
			}
		}
	})
	m.unrecorded(e.ID, err)
	if !first {
		return
	}
	m.exits.Happened(e.ID)
	m.log.Debug("container exited", "id", e.ID, "code", code)
	m.life.Start(func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(ctx, life.CleanupLimit)
		defer cancel()
		_ = m.notify.Container(ctx, plugins.ContainerStopped, e) // logged
		// Removal and recovery do it again, so nothing is lost if it fails here.
		if err := m.exits.Forget(ctx, e.Get().PodID, e.ID); err != nil && ctx.Err() == nil {
			m.log.Warn("shim did not free an exited container", "id", e.ID, "err", err)
		}
	})
}

// initExited makes a pod whose init died NotReady: its PID namespace is gone, and the
// processes in it. An init that did not come to hold anything is sharedPID's to undo.
func (m *Manager) initExited(e *state.PodEntry) {
	err := e.Observe(func(r *state.PodRecord) {
		if r.InitPid != 0 && r.Phase == state.PodReady {
			r.Phase = state.PodBroken
			m.log.Warn("pod is not ready", "id", e.ID, "err", r.Config.InitDied())
		}
		r.InitPid = 0
	})
	m.unrecorded(e.ID, err)
	m.exits.Happened(e.ID)
}

// unrecorded logs that something which has happened could not be written down.
func (m *Manager) unrecorded(id string, err error) {
	if err != nil && !errors.Is(err, table.ErrGone) {
		m.log.Error("record not written, a restart would ask the shim again", "id", id, "err", err)
	}
}

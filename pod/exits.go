package pod

import (
	"context"
	"errors"
	"sync"
	"syscall"
	"time"

	"github.com/coracle-project/coracle/pod/errdefs"
	"github.com/coracle-project/coracle/pod/life"
	"github.com/coracle-project/coracle/pod/plugins"
	"github.com/coracle-project/coracle/pod/state"
	"github.com/coracle-project/coracle/pod/table"
	"github.com/coracle-project/coracle/shim/client"
)

// exits lets operations wait for the end of a container's or pod's init without
// polling. An object that no one waits for costs nothing.
type exits struct {
	mu      sync.Mutex
	waiting map[string]chan struct{}
}

func newExits() *exits { return &exits{waiting: map[string]chan struct{}{}} }

// of returns a channel that is closed once id has ended. over says whether it has
// already; it is asked under the lock that happened takes, so no end is missed.
func (x *exits) of(id string, over func() bool) <-chan struct{} {
	x.mu.Lock()
	defer x.mu.Unlock()
	if over() {
		c := make(chan struct{})
		close(c)
		return c
	}
	c, ok := x.waiting[id]
	if !ok {
		c = make(chan struct{})
		x.waiting[id] = c
	}
	return c
}

// happened wakes all that wait for the end of id; over is true from now on.
func (x *exits) happened(id string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if c, ok := x.waiting[id]; ok {
		close(c)
		delete(x.waiting, id)
	}
}

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
		m.exits.happened(ev.ID) // someone may wait for what is not in our books
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
	m.exits.happened(e.ID)
	m.log.Debug("container exited", "id", e.ID, "code", code)
	m.life.Start(func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(ctx, life.CleanupLimit)
		defer cancel()
		_ = m.notify.Container(ctx, plugins.ContainerStopped, e) // logged
		// Removal and recovery do it again, so nothing is lost if it fails here.
		if err := m.forget(ctx, e.Get().PodID, e.ID); err != nil && ctx.Err() == nil {
			m.log.Warn("shim did not free an exited container", "id", e.ID, "err", err)
		}
	})
}

// forget frees what the shim holds of a container that is not running; calls at the
// same time join.
func (m *Manager) forget(ctx context.Context, podID, id string) error {
	return m.ops.Do(ctx, "forget/"+id, life.CleanupLimit, func(ctx context.Context) error {
		err := m.Shim.Delete(ctx, podID, id)
		if errors.Is(err, client.ErrNotFound) {
			return nil
		}
		return err
	})
}

// end has the shim free a container in whatever state it is, killing it first if it
// runs. It succeeds if the shim does not know it.
func (m *Manager) end(ctx context.Context, podID, id string) error {
	err := m.forget(ctx, podID, id)
	if !errors.Is(err, client.ErrRunning) {
		return err
	}
	over := m.exits.of(id, func() bool { return false })
	err = m.Shim.Kill(ctx, client.KillRequest{PodID: podID, ID: id, Signal: syscall.SIGKILL, All: true})
	switch {
	case errors.Is(err, client.ErrNotFound), errors.Is(err, client.ErrNotRunning):
		m.exits.happened(id) // ended in between
	case err != nil:
		return err
	}
	err = m.awaitKilled(ctx, over, func() (ended bool, err error) {
		err = m.forget(ctx, podID, id)
		return err == nil, ignoring(err, client.ErrRunning)
	})
	if err != nil {
		return err
	}
	return m.forget(ctx, podID, id)
}

// awaitKilled waits for the end after SIGKILL. A container whose record the shim could not read
// sends no event, so awaitKilled also calls ask, with growing pauses.
func (m *Manager) awaitKilled(ctx context.Context, over <-chan struct{}, ask func() (ended bool, err error)) error {
	for pause := firstKilledAsk; ; pause = min(2*pause, lastKilledAsk) {
		t := time.NewTimer(pause)
		select {
		case <-over:
			t.Stop()
			return nil
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return errdefs.Errorf(context.DeadlineExceeded, "still alive after SIGKILL: %w", ctx.Err())
		}
		if ended, err := ask(); ended || err != nil {
			return err
		}
	}
}

const firstKilledAsk, lastKilledAsk = 250 * time.Millisecond, 30 * time.Second

// ignoring returns nil if err is of a kind.
func ignoring(err, kind error) error {
	if errors.Is(err, kind) {
		return nil
	}
	return err
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
	m.exits.happened(e.ID)
}

// unrecorded logs that something which has happened could not be written down.
func (m *Manager) unrecorded(id string, err error) {
	if err != nil && !errors.Is(err, table.ErrGone) {
		m.log.Error("record not written, a restart would ask the shim again", "id", id, "err", err)
	}
}

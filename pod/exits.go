package pod

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/coracle-project/coracle/shim/client"
)

// exits lets operations wait for the end of a container's or pod's init without
// polling. An object that nobody waits for costs nothing.
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

// apply notes one event. Events of objects that are unknown or being removed mean
// nothing any more.
func (m *Manager) apply(ev client.Event) {
	if e := m.containers.exact(ev.ID); e != nil {
		switch ev.Kind {
		case client.EventOOM:
			err := e.observe(func(r *containerRecord) { r.OOMKilled = true })
			m.unrecorded(ev.ID, err)
		case client.EventExit:
			m.exited(e, ev.ExitCode, ev.ExitedAt, ev.OOMKilled, "")
		}
		return
	}
	if e := m.pods.exact(ev.ID); e != nil && ev.Kind == client.EventExit {
		m.initExited(e)
	}
}

// exited notes the end of a container, once, and has the shim forget it in the
// background. reason is given if the exit code does not say it.
func (m *Manager) exited(e *entry[containerRecord], code int32, at time.Time, oom bool, reason string) {
	if !e.get().running() {
		return
	}
	if at.IsZero() {
		at = time.Now()
	}
	first := false
	err := e.observe(func(r *containerRecord) {
		if first = r.running(); first {
			r.exit(code, at, oom)
			if reason != "" {
				r.Reason = reason
			}
		}
	})
	m.unrecorded(e.id, err)
	if !first {
		return
	}
	m.exits.happened(e.id)
	m.log.Debug("container exited", "id", e.id, "code", code)
	m.life.start(func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(ctx, cleanupLimit)
		defer cancel()
		// Removal and recovery do it again, so nothing is lost if it fails here.
		if err := m.forget(ctx, e.get().PodID, e.id); err != nil && ctx.Err() == nil {
			m.log.Warn("shim did not free an exited container", "id", e.id, "err", err)
		}
	})
}

// forget frees what the shim holds of a container that is not running; calls at the
// same time join.
func (m *Manager) forget(ctx context.Context, podID, id string) error {
	_, err := m.ops.Do(ctx, "forget/"+id, func(ctx context.Context) (struct{}, error) {
		ctx, cancel := context.WithTimeout(ctx, cleanupLimit)
		defer cancel()
		err := m.Shim.Delete(ctx, podID, id)
		if errors.Is(err, client.ErrNotFound) {
			err = nil
		}
		return struct{}{}, err
	})
	return err
}

// initExited makes a pod whose init died NotReady: its PID namespace is gone, and the
// processes in it.
func (m *Manager) initExited(e *entry[podRecord]) {
	err := e.observe(func(r *podRecord) {
		r.InitPid = 0
		if r.Phase == podReady {
			r.Phase = podBroken
			m.log.Warn("pod init died", "id", e.id)
		}
	})
	m.unrecorded(e.id, err)
	m.exits.happened(e.id)
}

// unrecorded logs that something which has happened could not be written down.
func (m *Manager) unrecorded(id string, err error) {
	if err != nil && !errors.Is(err, errGone) {
		m.log.Error("record not written, a restart would ask the shim again", "id", id, "err", err)
	}
}

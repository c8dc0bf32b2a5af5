package container

import (
	"context"
	"errors"
	"time"

	"github.com/coracle-project/coracle/pod/exits"
	"github.com/coracle-project/coracle/pod/life"
	"github.com/coracle-project/coracle/pod/plugins"
	"github.com/coracle-project/coracle/pod/state"
	"github.com/coracle-project/coracle/pod/table"
)

// Exited notes the end of a container, once, and has the shim forget it in the
// background. at is zero if no one can know how it ended.
func (cs *Containers) Exited(e *state.ContainerEntry, code int32, at time.Time, oom bool) {
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
	state.LogUnrecorded(cs.Log, e.ID, err)
	if !first {
		return
	}
	cs.Exits.Happened(e.ID)
	cs.Log.Debug("container exited", "container", e.ID, "code", code)
	cs.Life.Start(func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(ctx, life.CleanupLimit)
		defer cancel()
		_ = cs.Notify.Container(ctx, plugins.ContainerStopped, e) // logged
		if err != nil && !errors.Is(err, table.ErrGone) {
			return // the shim alone has the exit on record, and the next daemon asks it
		}
		// Removal and recovery do it again, so nothing is lost if it fails here.
		if err := cs.Exits.Forget(ctx, e.Get().PodID, e.ID); err != nil && ctx.Err() == nil {
			cs.Log.Warn("shim did not free an exited container", "container", e.ID, "err", err)
		}
	})
}

// OutOfMemory notes that the kernel killed a process of the container.
func (cs *Containers) OutOfMemory(e *state.ContainerEntry) {
	err := e.Observe(func(r *state.ContainerRecord) { r.OOMKilled = true })
	state.LogUnrecorded(cs.Log, e.ID, err)
}

// Lost records that a container has ended unobserved.
func (cs *Containers) Lost(e *state.ContainerEntry) {
	if e.Get().Running() {
		cs.Log.Error("container is lost: its shim does not know it", "container", e.ID, "pod", e.Get().PodID)
	}
	cs.Exited(e, exits.UnknownCode, time.Time{}, false)
}

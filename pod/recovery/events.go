package recovery

import (
	"context"

	"github.com/coracle-project/coracle/shim/client"
)

// watch applies the shim's events until the life ends or the shim client is closed.
func (rv *Recoverer) watch(ctx context.Context) {
	events := rv.Shim.Events()
	for {
		select {
		case ev, ok := <-events:
			if !ok {
				return
			}
			rv.Apply(ev)
		case <-ctx.Done():
			return
		}
	}
}

// Apply notes one event. Of objects that are unknown or being removed only those who
// wait for their end want to know.
func (rv *Recoverer) Apply(ev client.Event) {
	if ev.Kind == client.EventReconnected {
		select {
		case rv.reconnected <- struct{}{}:
		default: // a comparison is due already and will see the exit
		}
		return
	}
	if e := rv.Containers.Exact(ev.ID); e != nil {
		switch ev.Kind {
		case client.EventOOM:
			rv.ContainerLives.OutOfMemory(e)
		case client.EventExit:
			rv.ContainerLives.Exited(e, ev.ExitCode, ev.ExitedAt, ev.OOMKilled)
		}
	} else if e := rv.Pods.Exact(ev.ID); e != nil && ev.Kind == client.EventExit {
		rv.PodLives.InitExited(e)
	}
	if ev.Kind == client.EventExit {
		rv.Exits.Happened(ev.ID) // someone may wait for what is not in our books
	}
}

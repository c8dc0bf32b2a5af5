package pod

import (
	"context"

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
			m.containerLives.OutOfMemory(e)
		case client.EventExit:
			m.containerLives.Exited(e, ev.ExitCode, ev.ExitedAt, ev.OOMKilled)
		}
	} else if e := m.pods.Exact(ev.ID); e != nil && ev.Kind == client.EventExit {
		m.podLives.InitExited(e)
	}
	if ev.Kind == client.EventExit {
		m.exits.Happened(ev.ID) // someone may wait for what is not in our books
	}
}

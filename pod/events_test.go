package pod

import (
	"slices"
	"testing"
	"time"

	"github.com/coracle-project/coracle/pod/state"
	"github.com/coracle-project/coracle/shim/client"
)

// told takes n events and returns their kinds, by id.
func told(t *testing.T, events <-chan Event, n int) map[string][]EventKind {
	t.Helper()
	kinds := map[string][]EventKind{}
	for range n {
		select {
		case e := <-events:
			if e.At.IsZero() {
				t.Errorf("event without a time: %+v", e)
			}
			kinds[e.ID] = append(kinds[e.ID], e.Kind)
		case <-time.After(patience):
			t.Fatalf("there were only %v", kinds)
		}
	}
	return kinds
}

func TestEventsOfALife(t *testing.T) {
	b := newBench(t)
	m, _ := b.manager()
	ctx := t.Context()
	events, stop := m.Watch()
	defer stop()

	podID := must[string](t)(m.Run(ctx, podConfig("web")))
	id := must[string](t)(m.Create(ctx, podID, containerConfig("run")))
	ok(t, m.StartContainer(ctx, id))
	ok(t, m.StopContainer(ctx, id, time.Minute))
	ok(t, m.RemoveContainer(ctx, id))
	ok(t, m.Stop(ctx, podID))
	ok(t, m.Remove(ctx, podID))

	whole := []EventKind{EventCreated, EventStarted, EventStopped, EventDeleted}
	for id, kinds := range told(t, events, 8) {
		if !slices.Equal(kinds, whole) {
			t.Errorf("the events of %s are %v, want %v", id, kinds, whole)
		}
	}
	idle(t, m)
}

// Whoever gets an event sees what it tells.
func TestEventIsSeen(t *testing.T) {
	b := newBench(t)
	m, _ := b.manager()
	ctx := t.Context()
	podID := must[string](t)(m.Run(ctx, podConfig("web")))
	id := must[string](t)(m.Create(ctx, podID, containerConfig("run")))
	ok(t, m.StartContainer(ctx, id))
	events, stop := m.Watch()
	defer stop()
	m.apply(client.Event{ID: id, Kind: client.EventExit, ExitCode: 3, ExitedAt: time.Now()})
	if e := <-events; e.Kind != EventStopped || e.ID != id || e.PodID != podID {
		t.Errorf("the event is %+v", e)
	}
	if c := must[state.Container](t)(m.Container(id)); c.State != state.Exited || c.ExitCode != 3 {
		t.Errorf("the container is %+v", c)
	}
	// A second word of the same exit is none.
	m.apply(client.Event{ID: id, Kind: client.EventExit, ExitCode: 3, ExitedAt: time.Now()})
	select {
	case e := <-events:
		t.Errorf("there is another event: %+v", e)
	default:
	}
	ok(t, m.Remove(ctx, podID))
	idle(t, m)
}

// A watcher that does not read is closed, and holds up no one.
func TestSlowWatcher(t *testing.T) {
	var w watchers
	slow, quick := make(chan Event, 1), make(chan Event, 3)
	w.add(slow)
	w.add(quick)
	w.tell("c", "p", EventCreated, EventStarted, EventStopped)
	if len(quick) != 3 {
		t.Errorf("the quick watcher has %d events, want 3", len(quick))
	}
	<-slow
	if _, open := <-slow; open {
		t.Error("the slow watcher is open and has more than it holds")
	}
	w.drop(slow) // as its reader does at its end
	w.end()
	for range 3 {
		<-quick
	}
	if _, open := <-quick; open {
		t.Error("the quick watcher is open after the end")
	}
	late := make(chan Event)
	w.add(late)
	if _, open := <-late; open {
		t.Error("a watcher after the end is open")
	}
}

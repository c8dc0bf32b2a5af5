package pod

import (
	"slices"
	"testing"
	"time"

	"github.com/coracle-project/coracle/pod/state"
	"github.com/coracle-project/coracle/pod/watch"
	"github.com/coracle-project/coracle/shim/client"
)

// told takes n events and returns their kinds, by id.
func told(t *testing.T, events <-chan watch.Event, n int) map[string][]watch.EventKind {
	t.Helper()
	kinds := map[string][]watch.EventKind{}
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

	whole := []watch.EventKind{watch.EventCreated, watch.EventStarted, watch.EventStopped, watch.EventDeleted}
	for id, kinds := range told(t, events, 8) {
		if !slices.Equal(kinds, whole) {
			t.Errorf("the events of %s are %v, want %v", id, kinds, whole)
		}
	}
	idle(t, m)
}

// A client that gets an event sees the state that the event reports.
func TestEventIsSeen(t *testing.T) {
	b := newBench(t)
	m, _ := b.manager()
	ctx := t.Context()
	podID := must[string](t)(m.Run(ctx, podConfig("web")))
	id := must[string](t)(m.Create(ctx, podID, containerConfig("run")))
	ok(t, m.StartContainer(ctx, id))
	events, stop := m.Watch()
	defer stop()
	m.recovery.Apply(client.Event{ID: id, Kind: client.EventExit, ExitCode: 3, ExitedAt: time.Now()})
	if e := <-events; e.Kind != watch.EventStopped || e.ID != id || e.PodID != podID {
		t.Errorf("the event is %+v", e)
	}
	if c := must[state.Container](t)(m.Container(id)); c.State != state.Exited || c.ExitCode != 3 {
		t.Errorf("the container is %+v", c)
	}
	// A second word of the same exit is none.
	m.recovery.Apply(client.Event{ID: id, Kind: client.EventExit, ExitCode: 3, ExitedAt: time.Now()})
	select {
	case e := <-events:
		t.Errorf("there is another event: %+v", e)
	default:
	}
	ok(t, m.Remove(ctx, podID))
	idle(t, m)
}

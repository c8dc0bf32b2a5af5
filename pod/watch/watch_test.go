package watch

import (
	"slices"
	"testing"

	"github.com/coracle-project/coracle/pod/state"
)

// A watcher that does not read is closed, and holds up no one.
func TestSlowWatcher(t *testing.T) {
	var w Watchers
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
	w.End()
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

// What watchers are told of each change of a pod.
func TestPodChanged(t *testing.T) {
	for _, tc := range []struct {
		before, after state.PodPhase
		want          []EventKind
	}{
		{state.PodMaking, state.PodReady, []EventKind{EventCreated, EventStarted}},
		{state.PodReady, state.PodReady, nil},
		{state.PodReady, state.PodBroken, []EventKind{EventStopped}},
		{state.PodReady, state.PodStopping, []EventKind{EventStopped}},
		{state.PodBroken, state.PodStopping, nil},
		{state.PodStopping, state.PodStopped, nil},
		{state.PodStopped, state.PodRemoving, []EventKind{EventDeleted}},
		{state.PodReady, state.PodRemoving, []EventKind{EventStopped, EventDeleted}},
		{state.PodMaking, state.PodRemoving, nil}, // no one knows it
	} {
		var w Watchers
		events, stop := w.Watch()
		w.PodChanged(&state.PodRecord{ID: "p", Phase: tc.before}, &state.PodRecord{ID: "p", Phase: tc.after})
		stop()
		expect(t, string(tc.before+" to "+tc.after), events, "p", tc.want)
	}
}

// What watchers are told of each change of a container.
func TestContainerChanged(t *testing.T) {
	for _, tc := range []struct {
		before, after state.ContainerPhase
		reason        string
		want          []EventKind
	}{
		{state.ContainerMaking, state.ContainerCreated, "", []EventKind{EventCreated}},
		{state.ContainerCreated, state.ContainerStarting, "", nil},
		{state.ContainerStarting, state.ContainerCreated, "", nil}, // the start can be tried again
		{state.ContainerStarting, state.ContainerRunning, "", []EventKind{EventStarted}},
		{state.ContainerStarting, state.ContainerExited, "Completed", []EventKind{EventStarted, EventStopped}},
		{state.ContainerStarting, state.ContainerExited, state.StartError, []EventKind{EventStopped}},
		{state.ContainerRunning, state.ContainerRunning, "", nil},
		{state.ContainerRunning, state.ContainerExited, "", []EventKind{EventStopped}},
		{state.ContainerExited, state.ContainerExited, "", nil},
		{state.ContainerExited, state.ContainerRemoving, "", []EventKind{EventDeleted}},
		{state.ContainerCreated, state.ContainerRemoving, "", []EventKind{EventDeleted}},
		{state.ContainerMaking, state.ContainerRemoving, "", nil},
	} {
		var w Watchers
		events, stop := w.Watch()
		w.ContainerChanged(
			&state.ContainerRecord{ID: "c", PodID: "p", Phase: tc.before},
			&state.ContainerRecord{ID: "c", PodID: "p", Phase: tc.after, Reason: tc.reason},
		)
		stop()
		expect(t, string(tc.before+" to "+tc.after), events, "c", tc.want)
	}
}

// expect looks at all events of a watcher that was stopped.
func expect(t *testing.T, when string, events <-chan Event, id string, want []EventKind) {
	t.Helper()
	var kinds []EventKind
	for e := range events {
		if e.ID != id || e.PodID != "p" || e.At.IsZero() {
			t.Errorf("%s: event %+v", when, e)
		}
		kinds = append(kinds, e.Kind)
	}
	if !slices.Equal(kinds, want) {
		t.Errorf("%s: events %v, want %v", when, kinds, want)
	}
}

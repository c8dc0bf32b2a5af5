package watch

import "testing"

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

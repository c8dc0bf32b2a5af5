package client

import (
	"log/slog"
	"testing"

	"github.com/coracle-project/coracle/shim/api"
)

// A new shim repeats the exits of containers that are not deleted: what is deleted while
// the repetition is on its way is not told twice, and the next container of that id is.
func TestExitRepeatedAfterDelete(t *testing.T) {
	l := newLink("node", &Config{Log: slog.New(slog.DiscardHandler)})
	c := &Client{exits: map[string]Event{}}
	c.events.init()
	exit := func(pid uint32) { c.deliver(l, &api.Event{Kind: api.Event_EXIT, Id: "a", Pid: pid}) }
	told := func(want int) {
		t.Helper()
		if got := len(c.events.queue); got != want {
			t.Fatalf("told %d times, want %d", got, want)
		}
	}
	l.set(&conn{}, nil)
	l.repeated()
	exit(1)
	told(1)
	l.set(nil, nil) // the shim dies
	l.set(&conn{}, nil)
	exit(1)
	told(1)
	c.forget(l, "a")
	exit(1)
	told(1)
	exit(2)
	told(2)
	l.repeated()
	c.forget(l, "a")
	if len(c.exits) != 0 || l.deleted != nil {
		t.Error("what is deleted is remembered")
	}
}

// The daemon compares its records with a shim's: it gets an event when a new shim has replaced
// another.
func TestReconnectionIsTold(t *testing.T) {
	c := &Client{exits: map[string]Event{}}
	c.events.init()
	for name, podID := range map[string]string{nodeShim: "", "p1": "p1"} {
		c.events.queue = nil
		c.deliver(&link{name: name}, &api.Event{Kind: api.Event_READY})
		if q := c.events.queue; len(q) != 1 || q[0].Kind != EventReconnected || q[0].PodID != podID {
			t.Errorf("shim %s: told %+v", name, q)
		}
	}
}

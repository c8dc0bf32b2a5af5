package shim

import (
	"context"
	"slices"
	"testing"

	"github.com/coracle-project/coracle/shim/api"
)

// A container that ends while a client asks for past events is told of once: a client that has
// deleted it after the first event could not know that the second one is the same.
func TestEventsAreToldOnce(t *testing.T) {
	exit := func(id string) *api.Event { return &api.Event{Kind: api.Event_EXIT, Id: id, Pid: 1} }
	var e events
	ctx, cancel := context.WithCancel(t.Context())
	var got []string
	err := e.subscribe(ctx, func() []*api.Event {
		e.publish(exit("during"))
		return []*api.Event{exit("during"), exit("before")}
	}, func(ev *api.Event) error {
		got = append(got, ev.Kind.String()+" "+ev.Id)
		switch {
		case ev.Kind == api.Event_READY:
			e.publish(exit("before"))
			e.publish(&api.Event{Kind: api.Event_EXIT, Id: "before", Pid: 2})
			e.publish(exit("after"))
		case ev.Id == "after":
			cancel()
		}
		return nil
	})
	if want := []string{"EXIT during", "EXIT before", "READY ", "EXIT before", "EXIT after"}; !slices.Equal(got, want) {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
}

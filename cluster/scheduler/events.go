package scheduler

import (
	"context"

	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/client-go/tools/events"
)

// eventWrites is how many events are written at a time at most.
const eventWrites = 8

// boundedSink lets only some writes of events run at a time. The broadcaster begins one for each
// event at once, and there is one for each pod: they would get in the way of the bindings.
type boundedSink struct {
	events.EventSink
	places chan struct{}
}

func newBoundedSink(sink events.EventSink) boundedSink {
	return boundedSink{sink, make(chan struct{}, eventWrites)}
}

func (s boundedSink) bounded(write func() (*eventsv1.Event, error)) (*eventsv1.Event, error) {
	s.places <- struct{}{}
	defer func() { <-s.places }()
	return write()
}

// Create writes a new event.
func (s boundedSink) Create(ctx context.Context, e *eventsv1.Event) (*eventsv1.Event, error) {
	return s.bounded(func() (*eventsv1.Event, error) { return s.EventSink.Create(ctx, e) })
}

// Patch writes that an event happened again.
func (s boundedSink) Patch(ctx context.Context, e *eventsv1.Event, patch []byte) (*eventsv1.Event, error) {
	return s.bounded(func() (*eventsv1.Event, error) { return s.EventSink.Patch(ctx, e, patch) })
}

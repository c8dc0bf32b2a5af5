package shim

import (
	"context"
	"sync"

	"github.com/coracle-project/coracle/shim/api"
)

// events hands each event to every subscriber, in order, however slow it is.
type events struct {
	mu   sync.Mutex
	subs map[*subscriber]struct{}
}

// subscriber has its own queue. There is at most one exit and one OOM event per
// process, so the number of containers bounds it.
type subscriber struct {
	wake chan struct{}

	mu    sync.Mutex
	queue []*api.Event
}

func (e *events) publish(ev *api.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for s := range e.subs {
		s.push(ev)
	}
}

// occurrence is what an event is about: there is at most one event for it.
type occurrence struct {
	kind       api.Event_Kind
	id, execID string
	pid        uint32
}

func occurrenceOf(ev *api.Event) occurrence { return occurrence{ev.Kind, ev.Id, ev.ExecId, ev.Pid} }

// subscribe sends what past returns, a READY event, and then each new event until
// ctx ends or send fails. past is called when nothing new can be missed any more, so an event of
// past may be published as well: it is sent once.
func (e *events) subscribe(ctx context.Context, past func() []*api.Event, send func(*api.Event) error) error {
	s := &subscriber{wake: make(chan struct{}, 1)}
	e.mu.Lock()
	if e.subs == nil {
		e.subs = make(map[*subscriber]struct{})
	}
	e.subs[s] = struct{}{}
	e.mu.Unlock()
	defer func() {
		e.mu.Lock()
		delete(e.subs, s)
		e.mu.Unlock()
	}()
	told := make(map[occurrence]bool)
	for _, ev := range append(past(), &api.Event{Kind: api.Event_READY}) {
		told[occurrenceOf(ev)] = true
		if err := send(ev); err != nil {
			return err
		}
	}
	for {
		for _, ev := range s.take() {
			if told[occurrenceOf(ev)] {
				continue
			}
			if err := send(ev); err != nil {
				return err
			}
		}
		select {
		case <-s.wake:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (s *subscriber) push(ev *api.Event) {
	s.mu.Lock()
	s.queue = append(s.queue, ev)
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *subscriber) take() []*api.Event {
	s.mu.Lock()
	defer s.mu.Unlock()
	q := s.queue
	s.queue = nil
	return q
}

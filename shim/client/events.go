package client

import (
	"context"
	"sync"
	"time"

	"github.com/coracle-project/coracle/shim/api"
)

// eventQueue decouples the shims' streams from the daemon: an event that no one reads
// must not hold up the answers on the same connection.
type eventQueue struct {
	out  chan Event
	wake chan struct{}

	mu    sync.Mutex
	queue []Event
}

func (q *eventQueue) init() {
	q.out, q.wake = make(chan Event), make(chan struct{}, 1)
}

func (q *eventQueue) push(ev Event) {
	q.mu.Lock()
	q.queue = append(q.queue, ev)
	q.mu.Unlock()
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// run passes events on until ctx ends, and then closes the channel.
func (q *eventQueue) run(ctx context.Context) {
	defer close(q.out)
	for {
		q.mu.Lock()
		batch := q.queue
		q.queue = nil
		q.mu.Unlock()
		for _, ev := range batch {
			select {
			case q.out <- ev:
			case <-ctx.Done():
				return
			}
		}
		select {
		case <-q.wake:
		case <-ctx.Done():
			return
		}
	}
}

// Events delivers the exit of each container's init exactly once per Client (and again
// after a daemon restart until Delete). Closed by Close.
func (c *Client) Events() <-chan Event { return c.events.out }

// reconnected reports that a shim other than the first is connected and has repeated all exits.
func (c *Client) reconnected(l *link) {
	e := Event{Kind: EventReconnected}
	if l.name != nodeShim {
		e.PodID = l.name
	}
	c.events.push(e)
}

// deliver passes an event of a shim on, unless it was seen before: a new shim repeats
// the exits of all containers that are not deleted.
func (c *Client) deliver(l *link, ev *api.Event) {
	if ev.ExecId != "" {
		return // Exec waits for its own process
	}
	if ev.Kind == api.Event_READY {
		c.reconnected(l)
		return
	}
	e := Event{
		PodID: ev.PodId, ID: ev.Id, Pid: int(ev.Pid), ExitCode: int32(ev.ExitStatus),
		OOMKilled: ev.OomKilled,
	}
	if ev.ExitedAtNs != 0 {
		e.ExitedAt = time.Unix(0, ev.ExitedAtNs)
	}
	switch ev.Kind {
	case api.Event_EXIT:
		e.Kind = EventExit
	case api.Event_OOM:
		e.Kind, e.ExitCode, e.ExitedAt = EventOOM, 0, time.Time{}
		c.events.push(e)
		return
	default:
		l.log.Warn("unknown event", "kind", ev.Kind)
		return
	}
	if c.isNew(l, e) {
		c.events.push(e)
	}
}

func (c *Client) isNew(l *link, e Event) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if l.wasDeleted(e.ID, e.Pid) {
		return false
	}
	old, seen := c.exits[e.ID]
	c.exits[e.ID] = e
	return !seen || old.Pid != e.Pid
}

package shim

import (
	"errors"
	"sync"
	"time"
)

// errEnding is the error of calls to a shim that is about to end. The caller repeats the call, and
// the next shim answers.
var errEnding = errors.New("the shim is ending; repeat the call")

const (
	// lastCalls is how long a shim that is about to end waits for calls in progress.
	lastCalls = 5 * time.Second
	// lastAnswers is how long the answers to these calls may take to be sent.
	lastAnswers = 20 * time.Millisecond
)

// lasting lists the calls that last as long as a process. A shim that ends does not wait for them:
// their callers repeat them with the next shim.
var lasting = map[string]bool{"Wait": true, "Attach": true}

// asking lists the calls by which a daemon looks after a shim and its containers, for as long as
// they live. They leave no garbage worth collecting.
var asking = map[string]bool{"Connect": true, "Info": true, "State": true, "Stats": true, "List": true}

// calls counts the calls in progress.
type calls struct {
	mu    sync.Mutex
	n     int
	ended chan struct{} // non-nil: no new call may start; closed when no call is in progress
}

// begin reports whether a call may start. If so, the caller ends it with end.
func (c *calls) begin() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended != nil {
		return false
	}
	c.n++
	return true
}

func (c *calls) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n--
	if c.n == 0 && c.ended != nil {
		close(c.ended)
	}
}

// finishing reports whether the shim is about to end.
func (c *calls) finishing() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ended != nil
}

// finish refuses new calls and waits for the calls in progress, at most for limit.
func (c *calls) finish(limit time.Duration) {
	c.mu.Lock()
	if c.ended != nil {
		c.mu.Unlock()
		return
	}
	c.ended = make(chan struct{})
	if c.n == 0 {
		c.mu.Unlock()
		return
	}
	c.mu.Unlock()
	select {
	case <-c.ended:
		time.Sleep(lastAnswers) // ttrpc does not report when an answer has been sent
	case <-time.After(limit):
	}
}

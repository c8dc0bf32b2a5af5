package shim

import (
	"errors"
	"sync"
	"time"
)

// errEnding is the answer of a shim that is about to end: the next one takes the call.
var errEnding = errors.New("the shim is ending; ask the next one")

const (
	// lastCalls is how long a shim that is to end waits for the calls under way.
	lastCalls = 5 * time.Second
	// lastAnswers is how long the answers of these calls get to leave.
	lastAnswers = 20 * time.Millisecond
)

// lasting are calls that take as long as a process lives. A shim that ends does not wait for
// them: their callers ask the next one.
var lasting = map[string]bool{"Wait": true, "Attach": true}

// calls counts the calls under way.
type calls struct {
	mu    sync.Mutex
	n     int
	ended chan struct{} // not nil: no further call begins; closed when none is under way
}

// begin says whether a call may begin; then end ends it.
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

// finishing says that the shim is about to end.
func (c *calls) finishing() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ended != nil
}

// finish lets no further call begin and waits for those under way, at most for limit.
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
		time.Sleep(lastAnswers) // ttrpc does not tell when an answer is out
	case <-time.After(limit):
	}
}

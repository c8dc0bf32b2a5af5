package server

import (
	"sync"
	"time"
)

const (
	// complaintsAtOnce are logged of a layer whenever they come, further ones one in
	// complaintPause: a container may try in a loop what fails, and must not fill the log's file
	// system with it.
	complaintsAtOnce = 20
	complaintPause   = 10 * time.Second
)

// complaints counts what is logged.
type complaints struct {
	mu    sync.Mutex
	count int
	last  time.Time
}

// next says whether one more is to be logged.
func (c *complaints) next() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.count >= complaintsAtOnce && time.Since(c.last) < complaintPause {
		return false
	}
	c.count++
	c.last = time.Now()
	return true
}

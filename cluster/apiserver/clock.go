package apiserver

import (
	"sync"
	"time"

	"k8s.io/utils/clock"
)

// roundClock is a clock whose timers of about a second and more all go off together, on whole
// seconds.
//
// Each of some fifty watch caches has a timer of a second, for bookmarks, which upstream spreads
// over the second on purpose: that evens out the load of thousands of watches. Here it would wake
// an idle process fifty times a second, each time for next to nothing; waking once for all costs a
// tenth. The timers of 15 seconds, for compaction, come with them.
type roundClock struct{ clock.RealClock }

// NewTimer implements clock.Clock.
func (c roundClock) NewTimer(d time.Duration) clock.Timer {
	return roundTimer{c.RealClock.NewTimer(toRound(d))}
}

type roundTimer struct{ clock.Timer }

// Reset implements clock.Timer.
func (t roundTimer) Reset(d time.Duration) bool { return t.Timer.Reset(toRound(d)) }

// toRound makes a duration of about a second or more end on a whole one; shorter ones it leaves
// alone.
func toRound(d time.Duration) time.Duration {
	if d < 700*time.Millisecond {
		return d
	}
	now := time.Now()
	return now.Add(d).Truncate(time.Second).Add(time.Second).Sub(now)
}

// hurriedClock is a real clock whose last wait can be ended early.
type hurriedClock struct {
	clock.RealClock
	mu   sync.Mutex
	last *time.Timer
}

// After implements clock.Clock.
func (c *hurriedClock) After(d time.Duration) <-chan time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last = time.NewTimer(d)
	return c.last.C
}

// hurry ends the wait now.
func (c *hurriedClock) hurry() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.last != nil {
		c.last.Reset(0)
	}
}

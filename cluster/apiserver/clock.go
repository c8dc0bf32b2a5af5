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
type roundClock struct {
	clock.RealClock
	// progress replaces upstream's progressPause, unless it is 0.
	progress time.Duration
}

const (
	// progressPause is how long a watch cache waits before it asks etcd again how far its changes
	// have come. While other kinds of objects change, it has to ask for each list of what there is
	// now: from the second on, such lists took this long. No other timer of a watch cache is that
	// short.
	progressPause = 100 * time.Millisecond
	// nearProgressPause is the pause for the etcd in this process, which answers in some 50 µs.
	nearProgressPause = 5 * time.Millisecond
)

// NewTimer implements clock.Clock.
func (c roundClock) NewTimer(d time.Duration) clock.Timer {
	return roundTimer{c.RealClock.NewTimer(c.adapt(d)), c}
}

type roundTimer struct {
	clock.Timer
	clock roundClock
}

// Reset implements clock.Timer.
func (t roundTimer) Reset(d time.Duration) bool { return t.Timer.Reset(t.clock.adapt(d)) }

func (c roundClock) adapt(d time.Duration) time.Duration {
	if d == progressPause && c.progress != 0 {
		return c.progress
	}
	return toRound(d)
}

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

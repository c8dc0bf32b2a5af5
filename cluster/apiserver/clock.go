package apiserver

import (
	"time"

	"k8s.io/utils/clock"
)

// roundClock is a clock whose timers of about a second all go off together, on whole seconds.
//
// Each of some fifty watch caches has one such timer, for bookmarks, which upstream spreads over the
// second on purpose: that evens out the load of thousands of watches. Here it would wake an idle process fifty
// times a second, each time for next to nothing; waking once for all costs a tenth.
type roundClock struct{ clock.RealClock }

// NewTimer implements clock.Clock.
func (c roundClock) NewTimer(d time.Duration) clock.Timer {
	return roundTimer{c.RealClock.NewTimer(toRound(d))}
}

type roundTimer struct{ clock.Timer }

// Reset implements clock.Timer.
func (t roundTimer) Reset(d time.Duration) bool { return t.Timer.Reset(toRound(d)) }

// toRound makes a duration of about a second end on a whole one; others it leaves alone.
func toRound(d time.Duration) time.Duration {
	if d < 700*time.Millisecond || d > 1500*time.Millisecond {
		return d
	}
	now := time.Now()
	return now.Add(d).Truncate(time.Second).Add(time.Second).Sub(now)
}

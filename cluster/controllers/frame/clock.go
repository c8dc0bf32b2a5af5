package frame

import (
	"time"

	"k8s.io/utils/clock"
)

// metricsEvery is how often a queue says how long its oldest work has been under way.
const metricsEvery = 10 * time.Second

// calmClock is a clock whose tickers tick no more often than metricsEvery.
//
// A queue has two: one updates a metric that hardly anybody looks at, twice a second unless it gets
// such a clock, which for all queues together was half of what woke an idle process. The other
// looks every ten seconds whether work that waits is due, which timers say, too.
type calmClock struct{ clock.RealClock }

// NewTicker implements clock.WithTicker.
func (c calmClock) NewTicker(d time.Duration) clock.Ticker {
	return c.RealClock.NewTicker(max(d, metricsEvery))
}

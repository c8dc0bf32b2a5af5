package client

import "time"

// KillTimeout is killTimeout.
const KillTimeout = killTimeout

// Limits is limits.
type Limits = limits

// ShortLimits are limits for tests, in which everything is noticed within a second or two.
func ShortLimits() Limits {
	return limits{
		attend: 50 * time.Millisecond, ping: 100 * time.Millisecond, calm: time.Second,
		unready: 4, replace: 10,
		dump: 200 * time.Millisecond, kill: 10 * time.Second,
		absent: 200 * time.Millisecond, start: 500 * time.Millisecond,
		keeper: 10 * time.Millisecond,
		window: time.Minute, starts: 5,
	}
}

// SetLimits gives a Config limits.
func (c *Config) SetLimits(l Limits) { c.limits = l }

// Starts is how many starts in a window are no restart loop.
func (l limits) Starts() int { return l.starts }

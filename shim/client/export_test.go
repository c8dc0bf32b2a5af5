package client

import "time"

// KillTimeout is killTimeout.
const KillTimeout = killTimeout

// Limits exports limits.
type Limits = limits

// ShortLimits are limits for tests, in which everything is detected within a second or two.
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

// Patient has an unavailable shim replaced only after a minute.
func (l limits) Patient() limits {
	l.replace = 600
	return l
}

// SetLimits sets the limits of a Config.
func (c *Config) SetLimits(l Limits) { c.limits = l }

// Starts is the number of starts in a window that is not yet a restart loop.
func (l limits) Starts() int { return l.starts }

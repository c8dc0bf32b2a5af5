package client

import "time"

// limits say when a shim or keeper counts as unresponsive, and what happens then. They count
// unanswered pings, or are measured by CLOCK_MONOTONIC, which stops while the machine is suspended.
// Counting pings instead of the time since the last answer has another reason: a daemon that was
// itself stopped must not replace anything when it resumes.
type limits struct {
	attend  time.Duration // a call pending for this long starts the pings
	ping    time.Duration // for the answer to a ping, and the first pause between pings
	calm    time.Duration // longest pause between answered pings
	unready int           // unanswered pings after which the shim counts as unavailable
	replace int           // unanswered pings after which its process is replaced
	dump    time.Duration // for a Go program to write its stacks and end
	kill    time.Duration // for a killed process to end
	absent  time.Duration // without a connection, after which the shim counts as unavailable
	start   time.Duration // for shims to answer before Start returns without them
	window  time.Duration // in which starts are counted
	keeper  time.Duration // between pings of a keeper that may be hung
	starts  int           // more than these in a window are a restart loop
}

func defaultLimits() limits {
	return limits{
		attend: 5 * time.Second, ping: 5 * time.Second, calm: time.Minute,
		unready: 6, replace: 12,
		dump: 2 * time.Second, kill: 10 * time.Second,
		absent: 10 * time.Second, start: 2 * time.Second,
		window: time.Minute, starts: 5,
		keeper: time.Second,
	}
}

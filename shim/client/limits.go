package client

import "time"

// limits say when a shim or keeper that does not answer is noticed, and what follows. All of
// them are counted in unanswered pings or measured by CLOCK_MONOTONIC, which stands still while
// the machine is suspended. Pings are counted rather than the time since the last answer, so that
// a daemon that was stopped itself replaces nothing when it goes on.
type limits struct {
	attend  time.Duration // a call that has been pending for so long begins the pings
	ping    time.Duration // for a ping to be answered, and the first pause between two
	calm    time.Duration // longest pause between pings that are answered
	unready int           // unanswered pings after which the shim counts as unavailable
	replace int           // unanswered pings after which its process is replaced
	dump    time.Duration // for a Go program to write its stacks and end
	kill    time.Duration // for a killed process to end
	absent  time.Duration // without a connection, after which the shim counts as unavailable
	start   time.Duration // for shims to answer before Start returns without them
	window  time.Duration // in which starts are counted
	keeper  time.Duration // between pings of a keeper that may hang
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

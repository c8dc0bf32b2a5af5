package state

import (
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Stamps makes creation times that always increase, even if the wall clock is set back. Lists are
// sorted by them.
type Stamps struct {
	mu   sync.Mutex
	last time.Time
}

// Next is now, or just after the latest stamp if the clock shows no later time.
func (s *Stamps) Next() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	// Round strips the monotonic reading: a stamp from a record has none.
	if wall := now.Round(0); !wall.After(s.last) {
		now = s.last.Add(time.Nanosecond)
	}
	s.last = now.Round(0)
	return now
}

// Passed records a stamp that an earlier daemon made.
func (s *Stamps) Passed(t time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t.After(s.last) {
		s.last = t.Round(0)
	}
}

// sinceBoot is the time since boot. It cannot be set, and it includes suspended time
// (clock_gettime(2), CLOCK_BOOTTIME). Records do not outlive the boot.
var sinceBoot = func() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return 0 // cannot fail since Linux 2.6.39
	}
	return time.Duration(ts.Nano())
}

// StopBy records when a stop in progress will send SIGKILL.
func (r *ContainerRecord) StopBy(at time.Time) {
	r.StopAt, r.StopAtBoot = at, sinceBoot()+time.Until(at)
}

// UntilKill is how much longer a stop in progress waits.
func (r *ContainerRecord) UntilKill() time.Duration {
	if r.StopAtBoot != 0 {
		return r.StopAtBoot - sinceBoot()
	}
	return time.Until(r.StopAt) // an older daemon's record
}

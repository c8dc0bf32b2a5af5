package pod

import (
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// stamps are times of creation. Lists are in their order, and the wall clock may be set back.
type stamps struct {
	mu   sync.Mutex
	last time.Time
}

// next is now, or just after the latest stamp if the clock shows no later time.
func (s *stamps) next() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	// Round strips the monotonic reading, which says nothing of what a record had.
	if wall := now.Round(0); !wall.After(s.last) {
		now = s.last.Add(time.Nanosecond)
	}
	s.last = now.Round(0)
	return now
}

// passed is told of a stamp that an earlier daemon gave.
func (s *stamps) passed(t time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t.After(s.last) {
		s.last = t.Round(0)
	}
}

// sinceBoot is the time since the machine was started. No one can set it, and it goes on while the
// machine sleeps (clock_gettime(2), CLOCK_BOOTTIME). A record does not outlive the boot.
var sinceBoot = func() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return 0 // Linux 2.6.39 has it
	}
	return time.Duration(ts.Nano())
}

// stopBy notes when a stop under way turns to SIGKILL.
func (r *containerRecord) stopBy(at time.Time) {
	r.StopAt, r.StopAtBoot = at, sinceBoot()+time.Until(at)
}

// untilKill is how long a stop under way still waits.
func (r *containerRecord) untilKill() time.Duration {
	if r.StopAtBoot != 0 {
		return r.StopAtBoot - sinceBoot()
	}
	return time.Until(r.StopAt) // an older daemon's record
}

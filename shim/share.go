package shim

import (
	"runtime"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// A container pays for what it writes, and the shim for what it makes of it: 40 bytes in the log of one byte,
// if that is an empty line. So a container with little CPU could keep the shim, and with it the starts
// and execs of all other pods, busy. Two limits prevent that:
//
//   - share bounds the CPU time of all pumps together;
//   - logRate bounds what one container writes to its log.
//
// Both only ever pause a pump, and so the container once its FIFO is full: nothing is lost. The drain at a
// container's end waits for neither. While no pump waits they cost nothing: there are no tickers.

// share is the pumps' share of the CPUs. A pump takes a turn for each write to its log, in the order
// of asking. A turn is paid for in advance, with what the pump's last one took, and corrected
// afterwards. So a turn that hangs, because the log's file system does, holds no other pump up.
type share struct {
	cpus float64 // how many CPUs pumps may use, on average

	mu      sync.Mutex
	balance time.Duration // CPU time that may be used now; below 0 after turns that took longer than expected
	at      time.Time     // when the balance was computed
	waiting []*turn
	timer   *time.Timer // runs while a pump waits
}

// turn is one pump's place among the others.
type turn struct {
	granted chan struct{} // has an element when the turn has come
	paid    time.Duration // for this turn or, between two, for the next one
}

const (
	// shareSaved is the most CPU time that is saved up: how long pumps may keep CPUs to themselves.
	shareSaved = 2 * time.Millisecond
	// shareQuantum is what has to be there before waiting pumps go on. Waking them for each turn would
	// take as long as a small turn does.
	shareQuantum = time.Millisecond
	// shareDebt bounds what turns that took longer than expected cost the later ones.
	shareDebt = 100 * time.Millisecond
	// turnCost is what a pump's first turn is expected to take.
	turnCost = 50 * time.Microsecond
)

// newShare gives pumps an eighth of the CPUs that the shim uses. There is then nearly always an idle one, and only an
// idle one sees a request at once: Go's scheduler looks at sockets when it has nothing else to do, or after 10 ms.
// An eighth of two CPUs logs 100 MB/s of lines with 100 bytes.
func newShare() *share {
	return &share{cpus: float64(runtime.GOMAXPROCS(0)) / 8, balance: shareSaved, at: time.Now()}
}

func newTurn() *turn { return &turn{granted: make(chan struct{}, 1), paid: turnCost} }

// take waits for t's turn. It returns false if stop is closed before.
func (s *share) take(t *turn, stop <-chan struct{}) bool {
	s.mu.Lock()
	s.computeLocked()
	if s.balance > 0 && len(s.waiting) == 0 {
		s.balance -= t.paid
		s.mu.Unlock()
		return true
	}
	s.waiting = append(s.waiting, t)
	if len(s.waiting) == 1 {
		s.wakeLaterLocked()
	}
	s.mu.Unlock()
	select {
	case <-t.granted:
		return true
	case <-stop:
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.Index(s.waiting, t); i >= 0 {
		s.waiting = slices.Delete(s.waiting, i, i+1)
	} else { // it was granted at the same time
		<-t.granted
		s.balance += t.paid
	}
	return false
}

// done says how much CPU time t's turn took.
func (s *share) done(t *turn, took time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.balance = max(s.balance+t.paid-took, -shareDebt)
	t.paid = took
}

// threadTime is the CPU time of the calling thread.
func threadTime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts); err != nil {
		return 0
	}
	return time.Duration(ts.Nano())
}

func (s *share) computeLocked() {
	now := time.Now()
	s.balance = min(s.balance+time.Duration(float64(now.Sub(s.at))*s.cpus), shareSaved)
	s.at = now
}

func (s *share) wakeLaterLocked() {
	wait := time.Duration(float64(max(shareQuantum-s.balance, 0)) / s.cpus)
	if s.timer == nil {
		s.timer = time.AfterFunc(wait, s.wake)
		return
	}
	s.timer.Reset(wait)
}

// wake grants waiting pumps as many turns as there is time for.
func (s *share) wake() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.computeLocked()
	for s.balance > 0 && len(s.waiting) > 0 {
		t := s.waiting[0]
		s.waiting = slices.Delete(s.waiting, 0, 1)
		s.balance -= t.paid
		t.granted <- struct{}{}
	}
	if len(s.waiting) > 0 {
		s.wakeLaterLocked()
	}
}

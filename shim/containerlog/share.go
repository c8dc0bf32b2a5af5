package containerlog

import (
	"runtime"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// A container pays for what it writes, but the shim pays for processing it: an empty line, of one
// byte, becomes 40 bytes in the log. So a container with little CPU could keep the shim busy, and
// delay the starts and execs of all other pods. Two limits prevent that:
//
//   - Share bounds the CPU time of all pumps together;
//   - Rate limits what one container writes to its log.
//
// Both only pause a pump, and so the container once its FIFO is full. Nothing is lost. The drain at
// a container's end ignores both. While no pump waits they cost nothing: there are no tickers.

// Share is the pumps' share of the CPUs. A pump takes a turn for each write to its log. Turns are
// granted in the order of requests. A turn is paid in advance, at the cost of the pump's last turn,
// and corrected afterwards. So a turn that hangs, because the log's file system hangs, does not
// delay other pumps.
type Share struct {
	cpus float64 // average number of CPUs that pumps may use

	mu      sync.Mutex
	balance time.Duration // CPU time that may be used now; below 0 after long turns
	at      time.Time     // when the balance was computed
	waiting []*turn
	timer   *time.Timer // runs while a pump waits
}

// turn is one pump's place in the queue.
type turn struct {
	granted chan struct{} // has an element when the turn is granted
	paid    time.Duration // for this turn or, between turns, for the next one
}

const (
	// shareSaved is the most CPU time that can be saved up: how long pumps may use the CPUs without
	// a pause.
	shareSaved = 2 * time.Millisecond
	// shareQuantum is the CPU time that must be available before waiting pumps are woken. Waking a
	// pump takes about as long as a small turn.
	shareQuantum = time.Millisecond
	// shareDebt limits how much turns that took longer than expected delay later ones.
	shareDebt = 100 * time.Millisecond
	// turnCost is the expected cost of a pump's first turn.
	turnCost = 50 * time.Microsecond
)

// NewShare gives pumps an eighth of the CPUs that the shim uses. So one CPU is nearly always idle,
// and only an idle CPU handles a request at once: Go's scheduler checks sockets when it is idle, or
// after 10 ms. An eighth of two CPUs logs 100 MB/s of 100-byte lines.
func NewShare() *Share {
	return &Share{cpus: float64(runtime.GOMAXPROCS(0)) / 8, balance: shareSaved, at: time.Now()}
}

func newTurn() *turn { return &turn{granted: make(chan struct{}, 1), paid: turnCost} }

// take waits for t's turn. It returns false if stop is closed first.
func (s *Share) take(t *turn, stop <-chan struct{}) bool {
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
	} else { // the turn was granted at the same time
		<-t.granted
		s.balance += t.paid
	}
	return false
}

// done reports how much CPU time t's turn took.
func (s *Share) done(t *turn, took time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.balance = max(s.balance+t.paid-took, -shareDebt)
	t.paid = took
}

// threadTime returns the CPU time of the calling thread.
func threadTime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts); err != nil {
		return 0
	}
	return time.Duration(ts.Nano())
}

func (s *Share) computeLocked() {
	now := time.Now()
	s.balance = min(s.balance+time.Duration(float64(now.Sub(s.at))*s.cpus), shareSaved)
	s.at = now
}

func (s *Share) wakeLaterLocked() {
	wait := time.Duration(float64(max(shareQuantum-s.balance, 0)) / s.cpus)
	if s.timer == nil {
		s.timer = time.AfterFunc(wait, s.wake)
		return
	}
	s.timer.Reset(wait)
}

// wake grants waiting pumps as many turns as the balance allows.
func (s *Share) wake() {
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

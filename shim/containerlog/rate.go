package containerlog

import (
	"sync"
	"time"
)

// Limits for what a container may write to its log per second: more than programs log, and much
// less than the shim and a disk can handle. 50 MB of 100-byte lines are 500,000 records of 140
// bytes each. Empty lines reach the second limit at 26 MB.
const (
	logRateBytes   = 128 << 20
	logRateRecords = 600_000
)

// burst is how much may be written at once after a pause, as time at the full rate.
const burst = 100 * time.Millisecond

// Rate limits what a container writes to its log, with both streams together. The zero value is
// ready.
type Rate struct {
	mu    sync.Mutex
	until time.Time // when everything written so far would have been written at the full rate
}

// wrote records what has been written.
func (r *Rate) wrote(bytes, records int) {
	cost := max(time.Duration(bytes)*time.Second/logRateBytes, time.Duration(records)*time.Second/logRateRecords)
	r.mu.Lock()
	defer r.mu.Unlock()
	if earliest := time.Now().Add(-burst); r.until.Before(earliest) {
		r.until = earliest
	}
	r.until = r.until.Add(cost)
}

// pause is how long the container must wait before it writes more.
func (r *Rate) pause() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return time.Until(r.until)
}

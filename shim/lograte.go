package shim

import (
	"sync"
	"time"
)

// What a container may write to its log in a second: more than programs log, and much less than the shim and a disk
// take. 50 MB of lines with 100 bytes are 500,000 records, of 140 bytes each. Empty lines meet
// the second limit with 26 MB.
const (
	logRateBytes   = 128 << 20
	logRateRecords = 600_000
)

// logRateBurst is what may be written at once after a pause, as time at the full rate.
const logRateBurst = 100 * time.Millisecond

// logRate bounds what a container, with both of its streams, writes to its log.
type logRate struct {
	mu    sync.Mutex
	until time.Time // when what has been written would have been written at the full rate
}

// wrote counts what has been written.
func (r *logRate) wrote(bytes, records int) {
	cost := max(time.Duration(bytes)*time.Second/logRateBytes, time.Duration(records)*time.Second/logRateRecords)
	r.mu.Lock()
	defer r.mu.Unlock()
	if earliest := time.Now().Add(-logRateBurst); r.until.Before(earliest) {
		r.until = earliest
	}
	r.until = r.until.Add(cost)
}

// pause is how long the container has to wait before it writes more.
func (r *logRate) pause() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return time.Until(r.until)
}

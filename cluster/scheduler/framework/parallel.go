package framework

import (
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
)

// Parallel is how many goroutines may work on one pod at a time. Less than two means only the
// caller's.
type Parallel int

// Do calls f for pieces that together are 0..n, each at least grain long but for the last, and
// returns when all are done. f must be safe for concurrent use; if it panics, so does Do. Where
// there is too little to share, it is all done on the caller's goroutine, since waking another
// costs more than grain's worth.
func (p Parallel) Do(n, grain int, f func(from, to int)) {
	pieces := (n + grain - 1) / grain
	workers := min(int(p), pieces)
	if workers <= 1 {
		if n > 0 {
			f(0, n)
		}
		return
	}
	// More pieces than workers, since some are done sooner than others.
	size := max(grain, (n+4*workers-1)/(4*workers))
	var next atomic.Int64
	var panicked atomic.Value
	work := func() {
		defer func() {
			if r := recover(); r != nil {
				panicked.CompareAndSwap(nil, fmt.Sprintf("%v\n%s", r, debug.Stack()))
			}
		}()
		for {
			to := int(next.Add(int64(size)))
			from := to - size
			if from >= n {
				return
			}
			f(from, min(to, n))
		}
	}
	var wg sync.WaitGroup
	for range workers - 1 {
		wg.Go(work)
	}
	work()
	wg.Wait()
	if r := panicked.Load(); r != nil {
		panic(r)
	}
}

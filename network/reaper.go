package network

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// reapers bounds how many links are deleted side by side. The kernel takes 30 ms
// for one (6.18, 2 CPUs), nearly all of it waiting, and holds no lock meanwhile.
const reapers = 8

const (
	// reapLimit is how long one call may take before another is made in its place.
	reapLimit = 5 * time.Second
	// mostHung bounds calls that take longer: each of them has a thread, which waits in the kernel.
	mostHung = 56
	// A call that failed is made again after a second, then after twice as long, up to a minute.
	firstRetry, lastRetry = time.Second, time.Minute
)

// reaper calls a function with the keys that were added, in the background and a few side by side. A call that
// hangs does not hold up the others: its context ends, and if it goes on, because it waits in the kernel, it loses its place.
type reaper struct {
	work func(ctx context.Context, key string) error
	log  *slog.Logger

	mu      sync.Mutex
	queue   []*reaping
	pending map[*reaping]struct{} // in the queue, or in a call that does not take too long
	retries map[*time.Timer]struct{}
	running int // goroutines that take from the queue
	hung    int
	keeping map[*reaping]struct{} // late, and not replaced because too many hang
	closed  bool
	wg      sync.WaitGroup // running
}

// reaping is a key that was added.
type reaping struct {
	key      string
	failures int
	// settled is closed when the call has ended or takes too long.
	settled chan struct{}
	// The rest is guarded by reaper.mu: ended says that the call has; late that it took too long;
	// replaced that another goroutine has taken its place.
	ended, late, replaced bool
}

func newReaper(log *slog.Logger, work func(context.Context, string) error) *reaper {
	return &reaper{work: work, log: log, pending: map[*reaping]struct{}{}, keeping: map[*reaping]struct{}{}, retries: map[*time.Timer]struct{}{}}
}

// close works off the queue, for as long as it is not held up. Calls that hang are left to themselves.
func (r *reaper) close() {
	r.mu.Lock()
	r.closed = true
	for t := range r.retries {
		t.Stop()
	}
	clear(r.retries)
	for it := range r.keeping {
		r.replaceLocked(it)
	}
	clear(r.keeping)
	r.mu.Unlock()
	enough := time.AfterFunc(reapLimit, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.queue = nil
	})
	defer enough.Stop()
	r.wg.Wait()
}

func (r *reaper) add(key string) { r.push(&reaping{key: key}) }

func (r *reaper) push(it *reaping) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return
	}
	*it = reaping{key: it.key, failures: it.failures, settled: make(chan struct{})}
	r.queue = append(r.queue, it)
	r.pending[it] = struct{}{}
	r.spawnLocked()
}

func (r *reaper) spawnLocked() {
	if r.running < reapers && len(r.queue) > 0 {
		r.running++
		r.wg.Add(1)
		go r.run()
	}
}

// idle waits until all added before is worked off, has failed once or takes too long.
func (r *reaper) idle(ctx context.Context) error {
	r.mu.Lock()
	before := make([]*reaping, 0, len(r.pending))
	for it := range r.pending {
		before = append(before, it)
	}
	r.mu.Unlock()
	for _, it := range before {
		select {
		case <-it.settled:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

func (r *reaper) run() {
	for {
		it := r.next()
		if it == nil {
			return
		}
		overdue := time.AfterFunc(reapLimit, func() { r.overdue(it) })
		ctx, cancel := context.WithTimeout(context.Background(), reapLimit)
		err := r.work(ctx, it.key)
		cancel()
		overdue.Stop()
		if r.ended(it, err) {
			return
		}
	}
}

// next takes a key from the queue; nil if it is empty, and then the goroutine ends.
func (r *reaper) next() *reaping {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.queue) == 0 {
		r.running--
		r.wg.Done()
		return nil
	}
	it := r.queue[0]
	r.queue = r.queue[1:]
	return it
}

// overdue gives the place of a call that takes too long to another.
func (r *reaper) overdue(it *reaping) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if it.ended {
		return
	}
	it.late = true
	r.settleLocked(it)
	r.log.Warn("deleting a pod's link takes long", "pod", it.key, "limit", reapLimit)
	if r.hung >= mostHung && !r.closed {
		r.keeping[it] = struct{}{}
		return
	}
	r.replaceLocked(it)
}

func (r *reaper) replaceLocked(it *reaping) {
	it.replaced = true
	r.hung++
	r.running--
	r.spawnLocked() // before Done: close may be waiting
	r.wg.Done()
}

// ended notes the end of a call, and says whether its goroutine was replaced.
func (r *reaper) ended(it *reaping, err error) (replaced bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	it.ended = true
	delete(r.keeping, it)
	if !it.late {
		r.settleLocked(it)
	}
	if it.replaced {
		r.hung--
	}
	if err != nil {
		r.retryLocked(it, err)
	}
	return it.replaced
}

func (r *reaper) settleLocked(it *reaping) {
	delete(r.pending, it)
	close(it.settled)
}

func (r *reaper) retryLocked(it *reaping, err error) {
	again := min(firstRetry<<min(it.failures, 10), lastRetry)
	r.log.Error("cannot finish a pod's network; its addresses stay taken until it is tried again", "pod", it.key, "after", again, "err", err)
	if r.closed {
		return // until the next start
	}
	next := &reaping{key: it.key, failures: it.failures + 1}
	var t *time.Timer
	t = time.AfterFunc(again, func() {
		r.mu.Lock()
		delete(r.retries, t)
		r.mu.Unlock()
		r.push(next)
	})
	r.retries[t] = struct{}{}
}

package network

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// reapers limits how many links are deleted in parallel. The kernel takes 30 ms for one (6.18, 2
// CPUs), nearly all of it waiting, and holds no lock meanwhile.
const reapers = 8

const (
	// reapLimit is how long one call may take before another takes its place.
	reapLimit = 5 * time.Second
	// mostHung limits the calls that take longer: each has a thread, which waits in the kernel.
	mostHung = 56
	// A failed call is repeated after a second, then after twice as long each time, up to a minute.
	firstRetry, lastRetry = time.Second, time.Minute
)

// reaper calls a function with each added key in the background, a few in parallel. A call that
// hangs does not delay the others: its context ends, and if it still waits in the kernel, it loses
// its place.
type reaper struct {
	work func(ctx context.Context, key string) error
	log  *slog.Logger

	mu      sync.Mutex
	queue   []*reaping
	pending map[*reaping]struct{} // in the queue, or in a call that is in time
	retries map[*time.Timer]struct{}
	waiting map[string]*reaping // see addLater, by key
	running int                 // goroutines that take from the queue
	hung    int
	keeping map[*reaping]struct{} // late, and not replaced because too many hang
	closed  bool
	wg      sync.WaitGroup // running
}

// reaping is an added key.
type reaping struct {
	key      string
	failures int
	// settled is closed when the call has ended or takes too long.
	settled chan struct{}
	// The rest is guarded by reaper.mu. ended: the call has ended; late: it took too long;
	// replaced: another goroutine has taken its place.
	ended, late, replaced bool
	due                   *time.Timer // of one that waits
}

func newReaper(log *slog.Logger, work func(context.Context, string) error) *reaper {
	return &reaper{
		work: work, log: log, pending: map[*reaping]struct{}{}, keeping: map[*reaping]struct{}{},
		retries: map[*time.Timer]struct{}{}, waiting: map[string]*reaping{},
	}
}

// close processes the rest of the queue, unless hanging calls prevent it. It does not wait for
// those.
func (r *reaper) close() {
	r.mu.Lock()
	r.closed = true
	for key := range r.waiting {
		r.hurryLocked(key)
	}
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

// addLater adds a key when the limit is over, or when hurry is called for it.
func (r *reaper) addLater(key string, limit time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed || r.waiting[key] != nil {
		return
	}
	it := &reaping{key: key, settled: make(chan struct{})}
	it.due = time.AfterFunc(limit, func() { r.hurry(key) })
	r.waiting[key] = it
	r.pending[it] = struct{}{}
}

func (r *reaper) hurry(key string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.hurryLocked(key)
}

func (r *reaper) hurryLocked(key string) {
	it := r.waiting[key]
	if it == nil {
		return
	}
	it.due.Stop()
	delete(r.waiting, key)
	r.queue = append(r.queue, it)
	r.spawnLocked()
}

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

// idle waits until every key added so far is done, has failed once, or takes too long.
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

// next takes a key from the queue. If the queue is empty it returns nil, and the goroutine ends.
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

// overdue gives the place of a call that takes too long to a new goroutine.
func (r *reaper) overdue(it *reaping) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if it.ended {
		return
	}
	it.late = true
	r.settleLocked(it)
	r.log.Warn("deletion of pod's link is slow", "pod", it.key, "limit", reapLimit)
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
	r.spawnLocked() // before Done, because close may be waiting
	r.wg.Done()
}

// ended records the end of a call, and reports whether its goroutine was replaced.
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
	r.log.Error("cannot remove network of pod; its addresses stay in use until the next attempt", "pod", it.key, "after", again, "err", err)
	if r.closed {
		return // until the next start of the daemon
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

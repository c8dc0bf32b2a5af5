package apiserver

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	goruntime "runtime"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/cacher"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
)

const (
	// calmPeriod is how long few changes must come before a watch cache is replaced. Upstream's
	// cache keeps the changes of about as long.
	calmPeriod = cacher.DefaultEventFreshDuration
	// burst is the least number of changes in one period, also for each object that is left, that
	// make it worth while to read all objects again.
	burst, burstPerObject = 256, 4
	// calm is how many times fewer changes must come than in the burst.
	calm = 8
	// renewLimit bounds the wait for caches to be filled.
	renewLimit = time.Minute
	// aftermath is how many periods after the last replacement memory is still given back, in each
	// once. Meanwhile etcd drops the versions that the burst has left, and what used the old caches
	// ends.
	aftermath = 4
	// collections is how often garbage is collected each time. What a finalizer held goes with the
	// second collection, and the stacks of goroutines shrink by half with each.
	collections = 3
)

// cached is a resource's storage behind upstream's watch cache, which is replaced after a burst of
// changes.
//
// Upstream's cache keeps each change, with the object before and after, in a ring that grows while
// changes come quickly. It forgets one only when another takes its place. When thousands of pods
// have come and gone, hundreds of megabytes of them would stay for good.
type cached struct {
	resource schema.GroupResource
	history  int // how many changes its watch cache keeps while they come quickly, if it has few objects
	open     func(changed func()) (*generation, error)
	current  atomic.Pointer[generation]
	changes  atomic.Int64 // that the cache has seen in this period

	mu     sync.Mutex // held to replace and to stop
	peak   int64      // of changes in a period, since the cache was made
	closed bool
}

// generation is a watch cache and what it reads from.
type generation struct {
	*cacher.CacheDelegator
	cache    *cacher.Cacher
	closeRaw factory.DestroyFunc
	calls    sync.RWMutex // held for reading by each call; an open watch is none
}

func newCached(resource schema.GroupResource, history int, open func(changed func()) (*generation, error)) (*cached, error) {
	c := &cached{resource: resource, history: history, open: open}
	g, err := c.fresh()
	if err != nil {
		return nil, err
	}
	c.current.Store(g)
	return c, nil
}

func (c *cached) fresh() (*generation, error) { return c.open(func() { c.changes.Add(1) }) }

// stop waits for calls to end. Open watches are ended.
func (g *generation) stop() {
	g.calls.Lock()
	defer g.calls.Unlock()
	g.Stop()
	g.cache.Stop()
	g.closeRaw()
}

func (c *cached) stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.closed = true
		c.current.Load().stop()
	}
}

// endPeriod replaces the cache if a burst is over, and reports whether it did. Watches that are
// open end; a client goes on from the last version that it has seen, or is told to list again.
func (c *cached) endPeriod(ctx context.Context) (replaced bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.changes.Swap(0)
	c.peak = max(c.peak, n)
	over := c.peak >= burst && n <= c.peak/calm
	if c.closed || n == 0 && !over {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, renewLimit)
	defer cancel()
	old := c.current.Load()
	objects, err := c.fitHistory(ctx, old)
	if err != nil || !over || c.peak < burstPerObject*objects {
		return false, err
	}
	g, err := c.fresh()
	if err != nil {
		return false, err
	}
	if err := g.cache.Wait(ctx); err != nil {
		g.stop()
		return false, fmt.Errorf("new watch cache: %w", err)
	}
	boundHistory(g.cache, historyOf(objects, c.history))
	c.current.Store(g)
	c.peak = 0
	c.changes.Store(0) // the new one has counted the objects that there are
	old.stop()
	return true, nil
}

// fitHistory has a watch cache keep as many changes as fit the number of objects, which it returns.
func (c *cached) fitHistory(ctx context.Context, g *generation) (objects int64, err error) {
	stats, err := g.Stats(ctx)
	if err != nil {
		return 0, fmt.Errorf("number of objects: %w", err)
	}
	boundHistory(g.cache, historyOf(stats.ObjectCount, c.history))
	return stats.ObjectCount, nil
}

// begin has the watch cache keep as many changes as fit what there is at the start.
func (c *cached) begin(ctx context.Context) error {
	if err := c.current.Load().cache.Wait(ctx); err != nil {
		return fmt.Errorf("watch cache: %w", err)
	}
	if c.changes.Load() <= int64(c.history) { // of which each object that there is was one
		return nil
	}
	g := c.use()
	defer g.calls.RUnlock()
	_, err := c.fitHistory(ctx, g)
	return err
}

// caches are the storages of one API server that are behind a watch cache.
type caches struct {
	// compact has the store drop old versions of objects before their time: in the second call,
	// those from before the first. Nil if that is not this process's to decide.
	compact func()
	// free gives memory back to the kernel.
	free func()
	log  *slog.Logger

	period time.Duration

	mu   sync.Mutex
	all  map[*cached]struct{}
	left int // periods of the aftermath that are to come
}

// add adds a storage, and returns what stops it and takes it out.
func (s *caches) add(c *cached) factory.DestroyFunc {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all == nil {
		s.all = map[*cached]struct{}{}
	}
	s.all[c] = struct{}{}
	return sync.OnceFunc(func() { // each subresource calls it
		s.mu.Lock()
		delete(s.all, c)
		s.mu.Unlock()
		c.stop()
	})
}

// run fits watch caches to what is in them, and replaces them after bursts, until ctx ends.
func (s *caches) run(ctx context.Context) {
	s.begin(ctx)
	tick := time.NewTicker(s.period)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			s.endPeriod(ctx)
		case <-ctx.Done():
			return
		}
	}
}

// begin fits the caches of built-in resources. Those of custom resources come when they are asked
// for, so they are fitted at the end of the first period.
func (s *caches) begin(ctx context.Context) {
	soon, cancel := context.WithTimeout(ctx, renewLimit) // for all, as some may never be filled
	defer cancel()
	for _, c := range s.list() {
		s.report(ctx, c, c.begin(soon))
	}
}

func (s *caches) endPeriod(ctx context.Context) {
	any := false
	for _, c := range s.list() {
		replaced, err := c.endPeriod(ctx)
		s.report(ctx, c, err)
		any = any || replaced
	}
	s.calmDown(any)
}

func (s *caches) list() []*cached {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.all))
}

func (s *caches) report(ctx context.Context, c *cached, err error) {
	if err != nil && ctx.Err() == nil {
		s.log.Warn("cannot fit a watch cache to what is in it; it may keep too few changes, or the memory of a burst, until the next try",
			"resource", c.resource, "err", err)
	}
}

// calmDown gives memory back when caches were replaced, and in the periods after that, when what
// else held memory of the burst lets go of it.
//
// Etcd keeps an index of all versions of all keys in memory. The next regular compaction would come
// five to ten minutes after the burst. Until then its many small entries, which lie between what
// was freed, keep most of the pages of that memory in use.
func (s *caches) calmDown(replaced bool) {
	s.mu.Lock()
	left := s.left
	if replaced {
		left = aftermath
	} else {
		left = max(0, left-1)
	}
	after := s.left > 0
	s.left = left
	s.mu.Unlock()
	if left > aftermath-2 && s.compact != nil { // the second call drops what was there at the first
		s.compact()
	}
	if replaced || after {
		s.free()
	}
}

// giveBack returns what is not in use to the kernel.
func giveBack() {
	for range collections - 1 {
		goruntime.GC()
	}
	debug.FreeOSMemory() // collects, too
}

// use returns the current generation; its calls are held for reading. A call may be made within
// another one: an update of a RoleBinding lists RoleBindings to see what its user may grant. So it
// does not wait for a generation that was replaced, whose stop waits for the outer call.
func (c *cached) use() *generation {
	for {
		g := c.current.Load()
		if !g.calls.TryRLock() {
			if c.current.Load() != g {
				continue
			}
			g.calls.RLock() // it was not replaced, so the whole storage stops
		}
		if c.current.Load() == g {
			return g
		}
		g.calls.RUnlock()
	}
}

var _ storage.Interface = (*cached)(nil)

// Versioner implements storage.Interface, as all below.
func (c *cached) Versioner() storage.Versioner { return c.current.Load().Versioner() }

func (c *cached) Create(ctx context.Context, key string, obj, out runtime.Object, ttl uint64) error {
	g := c.use()
	defer g.calls.RUnlock()
	return g.Create(ctx, key, obj, out, ttl)
}

func (c *cached) Delete(ctx context.Context, key string, out runtime.Object, preconditions *storage.Preconditions,
	validate storage.ValidateObjectFunc, existing runtime.Object, o storage.DeleteOptions,
) error {
	g := c.use()
	defer g.calls.RUnlock()
	return g.Delete(ctx, key, out, preconditions, validate, existing, o)
}

func (c *cached) Watch(ctx context.Context, key string, o storage.ListOptions) (watch.Interface, error) {
	g := c.use()
	defer g.calls.RUnlock()
	w, err := g.Watch(ctx, key, o)
	if err != nil || !needsQueue(o) {
		return w, err
	}
	return newQueue(ctx, w, queueLimit), nil
}

func (c *cached) Get(ctx context.Context, key string, o storage.GetOptions, out runtime.Object) error {
	g := c.use()
	defer g.calls.RUnlock()
	return g.Get(ctx, key, o, out)
}

func (c *cached) GetList(ctx context.Context, key string, o storage.ListOptions, out runtime.Object) error {
	g := c.use()
	defer g.calls.RUnlock()
	return g.GetList(ctx, key, o, out)
}

func (c *cached) GuaranteedUpdate(ctx context.Context, key string, out runtime.Object, ignoreNotFound bool,
	preconditions *storage.Preconditions, update storage.UpdateFunc, existing runtime.Object,
) error {
	g := c.use()
	defer g.calls.RUnlock()
	return g.GuaranteedUpdate(ctx, key, out, ignoreNotFound, preconditions, update, existing)
}

func (c *cached) Stats(ctx context.Context) (storage.Stats, error) {
	g := c.use()
	defer g.calls.RUnlock()
	return g.Stats(ctx)
}

func (c *cached) ReadinessCheck() error {
	g := c.use()
	defer g.calls.RUnlock()
	return g.ReadinessCheck()
}

func (c *cached) RequestWatchProgress(ctx context.Context) error {
	g := c.use()
	defer g.calls.RUnlock()
	return g.RequestWatchProgress(ctx)
}

func (c *cached) GetCurrentResourceVersion(ctx context.Context) (uint64, error) {
	g := c.use()
	defer g.calls.RUnlock()
	return g.GetCurrentResourceVersion(ctx)
}

func (c *cached) EnableResourceSizeEstimation(keys storage.KeysFunc) error {
	g := c.use()
	defer g.calls.RUnlock()
	return g.EnableResourceSizeEstimation(keys)
}

func (c *cached) CompactRevision() int64 {
	g := c.use()
	defer g.calls.RUnlock()
	return g.CompactRevision()
}

// Package frame is the shape that all controllers have: keys come from informer events into a
// queue, workers take them and make the world look as the object says.
//
//	func New(set *client.Set) *frame.Controller {
//		c := &controller{...listers...}
//		f := frame.New("replicaset", 4, set.Logger(), c.sync)
//		f.Watch(set.Informers.Apps().V1().ReplicaSets().Informer(), frame.Self)
//		f.Watch(set.Informers.Core().V1().Pods().Informer(), c.ownerOf)
//		return f
//	}
//
// A key is one unit of work ("namespace/name" for most controllers). The same key is never worked
// on twice at a time; a sync that fails is tried again later, after a delay that doubles from 5 ms
// to about 16 minutes (upstream's default); a sync that succeeds forgets earlier failures. Syncs
// are level-triggered: they look at what is, never at which event woke them.
package frame

import (
	"context"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
)

// Sync brings one key's object and the world together. It returns nil when nothing is left to do,
// an error to be called again after a back-off.
type Sync func(ctx context.Context, key string) error

// Keys says which keys an object that was added, changed or deleted concerns.
type Keys func(obj any) []string

// Controller is a queue, its workers and the informers that feed it.
type Controller struct {
	Name string
	// Log gets the errors of syncs. Its owner may use it, too.
	Log     *slog.Logger
	sync    Sync
	workers int
	queue   workqueue.TypedRateLimitingInterface[string]
	delays  *delays
	watches []watch
	started []func(context.Context)
}

type watch struct {
	informer     cache.SharedIndexInformer
	added, after Keys
}

// New returns a controller that works on up to workers keys at once. log must not be nil.
func New(name string, workers int, log *slog.Logger, sync Sync) *Controller {
	c := &Controller{
		Name: name, Log: log, sync: sync, workers: workers,
		queue: workqueue.NewTypedRateLimitingQueueWithConfig(
			workqueue.DefaultTypedControllerRateLimiter[string](),
			workqueue.TypedRateLimitingQueueConfig[string]{Name: name}),
	}
	c.delays = newDelays(c.queue.Add)
	return c
}

// Watch feeds the queue with what keys says of each object that informer sees come, change (both
// its old and its new state are asked about) or go. Call it before Run.
func (c *Controller) Watch(informer cache.SharedIndexInformer, keys Keys) {
	c.WatchAdded(informer, keys, keys)
}

// WatchAdded is Watch with other keys for objects that come.
func (c *Controller) WatchAdded(informer cache.SharedIndexInformer, added, after Keys) {
	c.watches = append(c.watches, watch{informer, added, after})
}

// Also runs f alongside the workers, once the informers have synced, until its context ends.
func (c *Controller) Also(f func(context.Context)) { c.started = append(c.started, f) }

// Add puts key into the queue, now.
func (c *Controller) Add(key string) { c.queue.Add(key) }

// AddAfter puts key into the queue when d has passed. Of several times for one key, the earliest
// counts.
func (c *Controller) AddAfter(key string, d time.Duration) { c.delays.addAfter(key, d) }

// Run works until ctx ends, and returns when all workers have. The informers must be started by
// their owner; Run waits until they have synced.
func (c *Controller) Run(ctx context.Context) {
	synced := make([]cache.DoneChecker, 0, len(c.watches))
	for _, w := range c.watches {
		registration, err := w.informer.AddEventHandler(c.handler(w))
		if err != nil { // the informer was stopped: the process is ending
			c.Log.Error("controller cannot watch", "controller", c.Name, "err", err)
			return
		}
		defer func() { _ = w.informer.RemoveEventHandler(registration) }()
		synced = append(synced, registration.HasSyncedChecker())
	}
	if !cache.WaitFor(ctx, "", synced...) { // at once: WaitForCacheSync looks every 100 ms
		return
	}
	var wg sync.WaitGroup
	for _, f := range c.started {
		wg.Go(func() { f(ctx) })
	}
	for range c.workers {
		wg.Go(func() {
			for c.next(ctx) {
			}
		})
	}
	<-ctx.Done()
	c.delays.stop()
	c.queue.ShutDown()
	wg.Wait()
}

func (c *Controller) handler(w watch) cache.ResourceEventHandlerFuncs {
	add := func(keys Keys, obj any) {
		if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
			obj = gone.Obj
		}
		for _, key := range keys(obj) {
			c.queue.Add(key)
		}
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { add(w.added, obj) },
		UpdateFunc: func(old, obj any) { add(w.after, old); add(w.after, obj) },
		DeleteFunc: func(obj any) { add(w.after, obj) },
	}
}

func (c *Controller) next(ctx context.Context) bool {
	key, stop := c.queue.Get()
	if stop {
		return false
	}
	defer c.queue.Done(key)
	if err := c.guarded(ctx, key); err != nil {
		if ctx.Err() == nil {
			tries := c.queue.NumRequeues(key)
			c.Log.Log(ctx, levelOf(err, tries), "sync", "controller", c.Name, "key", key, "err", err, "tries", tries)
			c.queue.AddRateLimited(key)
		}
		return true
	}
	c.queue.Forget(key)
	return true
}

// levelOf is how a failed sync is logged. A conflict means that the object has changed since it was
// read, and the next try reads it again. Only a second conflict deserves an operator's attention.
func levelOf(err error, tries int) slog.Level {
	if apierrors.IsConflict(err) && tries == 0 {
		return slog.LevelDebug
	}
	return slog.LevelWarn
}

// guarded turns a panic in one sync into an error of that sync: one odd object must not stop the
// controllers of all others.
func (c *Controller) guarded(ctx context.Context, key string) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = panicked{r, debug.Stack()}
		}
	}()
	return c.sync(ctx, key)
}

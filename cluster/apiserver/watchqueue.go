package apiserver

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
)

const (
	// queueLimit is how many changes wait for a reader at most: as many as in upstream's largest
	// buffer. All watches share the objects of most of them.
	queueLimit = 1000
	// queueCopies is how many of them may have objects of their own: those that come first in a
	// watch, and those that a selector no longer matches. So a watch that no one reads holds about
	// 1 MB of them.
	queueCopies = 100
	// queueRoom is how many changes a reader can take at once. Upstream's handler flushes its answer
	// when there is no other change to write.
	queueRoom = 10
)

// needsQueue says whether a watch is one of many objects of a resource with much to watch: one that
// has an index for watches of a few objects, and of which this watch does not use it. In upstream's
// API, those are watches of pods that are not of one node, and of ResourceSlices.
func needsQueue(o storage.ListOptions) bool {
	if _, one := o.Predicate.MatchesSingle(); one {
		return false
	}
	for _, field := range o.Predicate.IndexFields {
		if _, ok := o.Predicate.Field.RequiresExactMatch(field); ok {
			return false
		}
	}
	return len(o.Predicate.IndexFields) > 0
}

// queue is a watch whose changes wait for their reader here.
//
// The watch cache hands a change to one watch after another. It ends a watch that has no room for
// it, after a short wait, and all watches share the time that it waits for. So one slow client
// takes it from all others, among them the informers of this process, which may have to list all
// objects again then. Upstream's room is for 1/75 of the history that the cache has when the watch
// begins, but at least for ten changes, and [boundHistory] keeps that history short.
//
// While a watch catches up, changes wait in upstream's room only.
type queue struct {
	from    watch.Interface
	changes chan watch.Event
	stopped chan struct{}
	stop    func()
}

// newQueue returns a queue of at most limit changes of a watch. It ends with the watch or with ctx:
// upstream's handler does not stop a watch that it cannot answer.
func newQueue(ctx context.Context, from watch.Interface, limit int) *queue {
	q := &queue{from: from, changes: make(chan watch.Event, queueRoom), stopped: make(chan struct{})}
	q.stop = sync.OnceFunc(func() { close(q.stopped) })
	go q.run(ctx, limit)
	return q
}

// Stop implements [watch.Interface]. It may be called more than once.
func (q *queue) Stop() { q.stop() }

// ResultChan implements [watch.Interface].
func (q *queue) ResultChan() <-chan watch.Event { return q.changes }

func (q *queue) run(ctx context.Context, limit int) {
	defer close(q.changes)
	defer q.from.Stop()
	var waiting []watch.Event
	copies := 0
	from := q.from.ResultChan()
	for from != nil || len(waiting) > 0 { // those that wait when the watch ends are still handed on
		in := from
		if len(waiting) >= limit || copies >= queueCopies {
			in = nil
		}
		var out chan<- watch.Event
		var first watch.Event
		if len(waiting) > 0 {
			out, first = q.changes, waiting[0]
		}
		select {
		case e, ok := <-in:
			if !ok {
				from = nil
				break
			}
			waiting = append(waiting, e)
			copies += ownObject(e)
		case out <- first:
			copies -= ownObject(first)
			waiting[0] = watch.Event{}
			if waiting = waiting[1:]; len(waiting) == 0 {
				waiting = nil
			}
		case <-q.stopped:
			return
		case <-ctx.Done():
			return
		}
	}
}

// ownObject is 1 if no other watch has the object of a change, which is more than a version.
func ownObject(e watch.Event) int {
	if _, shared := e.Object.(runtime.CacheableObject); shared || e.Type == watch.Bookmark {
		return 0
	}
	return 1
}

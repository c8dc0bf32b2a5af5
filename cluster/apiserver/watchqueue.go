package apiserver

import (
	"sync"

	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
)

// queueLimit is how many changes wait for a reader at most: as many as upstream's largest buffer.
const queueLimit = 1000

// needsQueue says whether a watch is one of all objects of a resource with much to watch: one that
// has an index for watches of a few objects, and of which this watch does not use it.
func needsQueue(o storage.ListOptions) bool {
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
// objects again then. Upstream's room grows with the cache's history, from ten changes; with the
// history that [boundHistory] leaves, to 28.
type queue struct {
	from    watch.Interface
	changes chan watch.Event
	stopped chan struct{}
	stop    func()
}

// newQueue returns a queue of at most limit changes of a watch, which ends with it.
func newQueue(from watch.Interface, limit int) *queue {
	q := &queue{from: from, changes: make(chan watch.Event), stopped: make(chan struct{})}
	q.stop = sync.OnceFunc(func() { close(q.stopped) })
	go q.run(limit)
	return q
}

// Stop implements [watch.Interface]. It may be called more than once.
func (q *queue) Stop() { q.stop() }

// ResultChan implements [watch.Interface].
func (q *queue) ResultChan() <-chan watch.Event { return q.changes }

func (q *queue) run(limit int) {
	defer close(q.changes)
	defer q.from.Stop()
	var waiting []watch.Event
	from := q.from.ResultChan()
	for from != nil || len(waiting) > 0 { // those that wait when the watch ends are still handed on
		in := from
		if len(waiting) >= limit {
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
		case out <- first:
			waiting[0] = watch.Event{}
			if waiting = waiting[1:]; len(waiting) == 0 {
				waiting = nil
			}
		case <-q.stopped:
			return
		}
	}
}

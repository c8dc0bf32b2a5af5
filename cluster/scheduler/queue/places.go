package queue

import (
	"container/heap"
	"time"

	"github.com/coracle-project/coracle/cluster/scheduler/framework"
)

// item is a pod in the queue: in a pile, or parked when place is nil.
type item struct {
	*framework.QueuedPod
	place *pile
	index int
}

// pile is a heap of pods.
type pile struct {
	items []*item
	less  func(a, b *framework.QueuedPod) bool
}

func (p *pile) Len() int           { return len(p.items) }
func (p *pile) Less(i, j int) bool { return p.less(p.items[i].QueuedPod, p.items[j].QueuedPod) }

func (p *pile) Swap(i, j int) {
	p.items[i], p.items[j] = p.items[j], p.items[i]
	p.items[i].index, p.items[j].index = i, j
}

// Push and Pop are for container/heap.
func (p *pile) Push(x any) {
	it := x.(*item)
	it.place, it.index = p, len(p.items)
	p.items = append(p.items, it)
}

func (p *pile) Pop() any {
	last := len(p.items) - 1
	it := p.items[last]
	p.items[last] = nil
	p.items = p.items[:last]
	it.place = nil
	return it
}

func (p *pile) first() *item { return p.items[0] }
func (p *pile) fix(it *item) { heap.Fix(p, it.index) }

// takeLocked takes it out of where it is.
func (q *Queue) takeLocked(it *item) {
	if it.place != nil {
		heap.Remove(it.place, it.index)
		return
	}
	q.parked.Delete(it.Key())
}

// toActiveLocked has it tried as soon as its turn comes, unless it is gated.
func (q *Queue) toActiveLocked(it *item) {
	if q.gatedLocked(it) {
		q.parkLocked(it)
		return
	}
	q.activateLocked(it)
}

func (q *Queue) activateLocked(it *item) {
	if it.FirstTried.IsZero() {
		it.FirstTried = time.Now()
	}
	heap.Push(&q.active, it)
	q.changed.Signal()
}

// requeueLocked has it tried again, after its back-off if that runs yet.
func (q *Queue) requeueLocked(it *item) {
	if ready := q.readyLocked(it); !ready.After(time.Now()) {
		q.toActiveLocked(it)
		return
	}
	if q.gatedLocked(it) {
		q.parkLocked(it)
		return
	}
	to := &q.backoff
	if len(it.Rejectors) == 0 {
		to = &q.failed
	}
	heap.Push(to, it)
	q.armLocked()
	q.changed.Signal()
}

func (q *Queue) parkLocked(it *item) {
	q.parked.Insert(it.Key())
	if q.flush == nil && !q.closed {
		q.flush = time.AfterFunc(MaxParked, q.flushParked)
	}
}

// gatedLocked asks whether it may be tried at all, first the plugin that last said no.
func (q *Queue) gatedLocked(it *item) bool {
	profile := q.opts.Profiles[it.Pod().Spec.SchedulerName]
	if profile == nil {
		return false
	}
	rejects := func(pl framework.PreEnqueue) bool {
		if pl.PreEnqueue(it.Pod()).OK() {
			return false
		}
		it.Rejectors.Insert(pl.Name())
		it.Gate = pl.Name()
		return true
	}
	for _, pl := range profile.PreEnqueues {
		if pl.Name() == it.Gate && rejects(pl) {
			return true
		}
	}
	for _, pl := range profile.PreEnqueues {
		if pl.Name() != it.Gate && rejects(pl) {
			return true
		}
	}
	it.Gate = ""
	return false
}

// readyLocked returns when it's back-off ends.
func (q *Queue) readyLocked(it *item) time.Time {
	tries := it.Unschedulable
	if it.Errors > 0 {
		tries = it.Errors
	}
	if tries == 0 || q.opts.MaxBackoff < 0 {
		return time.Time{}
	}
	if it.Ready.IsZero() {
		d := q.opts.MaxBackoff
		if shift := tries - 1; shift < 32 && q.opts.InitialBackoff<<shift < d {
			d = q.opts.InitialBackoff << shift
		}
		it.Ready = it.Added.Add(d).Truncate(time.Second).Add(time.Second)
	}
	return it.Ready
}

// armLocked sets the timer for the first back-off to end.
func (q *Queue) armLocked() {
	if q.closed {
		return
	}
	var first time.Time
	for _, p := range []*pile{&q.backoff, &q.failed} {
		if p.Len() > 0 && (first.IsZero() || p.first().Ready.Before(first)) {
			first = p.first().Ready
		}
	}
	switch {
	case first.IsZero() || first.Equal(q.wakeAt):
	case q.wake == nil:
		q.wake = time.AfterFunc(time.Until(first), q.backoffEnds)
		q.wakeAt = first
	default:
		q.wake.Reset(time.Until(first))
		q.wakeAt = first
	}
}

// backoffEnds moves on the pods whose back-off has ended.
func (q *Queue) backoffEnds() {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now()
	q.wakeAt = time.Time{}
	for _, p := range []*pile{&q.backoff, &q.failed} {
		for p.Len() > 0 && !p.first().Ready.After(now) {
			it := p.first()
			q.takeLocked(it)
			q.activateLocked(it) // it was not gated when it came into the pile
		}
	}
	q.armLocked()
}

// flushParked moves on the pods that are parked too long.
func (q *Queue) flushParked() {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now()
	next := time.Duration(0)
	for _, uid := range q.parked.UnsortedList() {
		it := q.pods[uid]
		if left := MaxParked - now.Sub(it.Added); left <= 0 {
			q.moveLocked(it, happened{event: framework.Event{}})
			if it.place == nil {
				left = MaxParked // gated
			} else {
				continue
			}
			next = shorter(next, left)
		} else {
			next = shorter(next, left)
		}
	}
	// Not before: those that are parked again would start another timer.
	q.flush = nil
	if next > 0 && !q.closed {
		q.flush = time.AfterFunc(next, q.flushParked)
	}
}

// shorter returns the shorter of two times of which a may be unset.
func shorter(a, b time.Duration) time.Duration {
	if a == 0 {
		return b
	}
	return min(a, b)
}

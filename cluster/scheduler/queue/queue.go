// Package queue holds the pods that wait to be scheduled and says which is next.
//
// A pod is in one of these places:
//
//	active    may be tried now; the profile's QueueSort orders it
//	backoff   was rejected; something has happened since that may help, but its back-off runs yet
//	failed    like backoff, after an unexpected error
//	parked    was rejected or is gated, and nothing has happened since that may help
//	in flight was popped, and Return or Done has not been called for it
//
// An event moves a parked pod on if one of the plugins that rejected it asked for such events and
// its hint says that this one may help; see framework.Enqueuer. Events that come while a pod is in
// flight are kept and looked at when it returns. What no event moves is tried again after
// MaxParked, so that a hint that is wrong delays a pod and does not lose it.
//
// The back-off is 1 s after the first rejection and doubles up to 10 s, rounded up to the next full
// second; pods whose back-off ends in the same second are ordered as in active. When active is
// empty, pods leave backoff early: there is nothing they could be in the way of. Pods in failed do
// not, since that would load an API server in trouble.
//
// The queue also keeps who is nominated to which node, because that changes with the same events.
// Nothing here does I/O or wakes without cause: timers run only while a pod waits for them.
package queue

import (
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/coracle-project/coracle/cluster/scheduler/framework"
)

// MaxParked is how long a pod is parked at most.
const MaxParked = 5 * time.Minute

// Options say how a Queue works.
type Options struct {
	// Profiles are those whose pods come here, by name. All must sort alike; the order is that of
	// the first.
	Profiles map[string]*framework.Profile
	// Curious is that every event may help pods that were rejected by who is no plugin.
	Curious bool
	// Less orders active.
	Less func(a, b *framework.QueuedPod) bool
	// InitialBackoff and MaxBackoff are 1 s and 10 s unless set; a negative MaxBackoff turns
	// back-off off.
	InitialBackoff, MaxBackoff time.Duration
	// Current returns the newest version of a pod (by name and UID) that is known, nil if it is
	// gone.
	Current func(pod *v1.Pod) *v1.Pod
}

// Queue is safe for concurrent use.
type Queue struct {
	opts  Options
	rules map[string]*rules // by profile

	mu      sync.Mutex
	changed sync.Cond // active or backoff got a pod, or closed
	closed  bool
	pods    map[types.UID]*item // all but those in flight
	active  pile
	backoff pile
	failed  pile
	parked  sets.Set[types.UID]
	journal journal
	nominations

	wake   *time.Timer // for the first back-off to end; nil when none runs
	wakeAt time.Time
	flush  *time.Timer // for pods that are parked too long; nil when none is parked
}

// New returns an empty queue.
func New(opts Options) *Queue {
	if opts.InitialBackoff == 0 {
		opts.InitialBackoff = time.Second
	}
	if opts.MaxBackoff == 0 {
		opts.MaxBackoff = 10 * time.Second
	}
	q := &Queue{
		opts: opts, rules: make(map[string]*rules), pods: make(map[types.UID]*item),
		parked: sets.New[types.UID](), journal: journal{since: make(map[types.UID]uint64)},
	}
	for name, p := range opts.Profiles {
		q.rules[name] = newRules(p)
		q.rules[name].all = q.rules[name].all || opts.Curious
	}
	byReady := func(a, b *framework.QueuedPod) bool {
		if !a.Ready.Equal(b.Ready) {
			return a.Ready.Before(b.Ready)
		}
		return opts.Less(a, b)
	}
	q.active.less, q.backoff.less, q.failed.less = opts.Less, byReady, byReady
	q.changed.L = &q.mu
	q.nominations.current = opts.Current
	return q
}

// Add puts in a pod that has just appeared.
func (q *Queue) Add(pod *v1.Pod) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.addLocked(pod)
}

func (q *Queue) addLocked(pod *v1.Pod) {
	if q.pods[pod.UID] != nil || q.journal.inFlight(pod.UID) {
		return
	}
	it := &item{QueuedPod: &framework.QueuedPod{
		PodInfo: framework.NewPodInfo(pod), Added: time.Now(), Rejectors: sets.New[string](),
	}}
	q.pods[pod.UID] = it
	q.toActiveLocked(it)
	if it.place == &q.active {
		q.nominateLocked(it.PodInfo, nil)
	}
}

// Update is told that a pod which is not on a node has changed. old may be nil if it is not known.
func (q *Queue) Update(old, pod *v1.Pod) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if old == nil {
		old = pod
	}
	events := framework.PodChange(old, pod)
	if q.journal.inFlight(pod.UID) {
		// It comes back with the version that is the newest then.
		for _, e := range events {
			q.journal.add(happened{event: e, old: old, new: pod})
		}
		return
	}
	it := q.pods[pod.UID]
	if it == nil {
		q.addLocked(pod)
		return
	}
	it.PodInfo = framework.NewPodInfo(pod)
	q.renominateLocked(old, it.PodInfo)
	if it.place != nil {
		it.place.fix(it)
		return
	}
	for _, e := range events {
		if q.moveLocked(it, happened{event: e, old: old, new: pod}) {
			return
		}
	}
}

// Delete takes out a pod that is gone or bound.
func (q *Queue) Delete(pod *v1.Pod) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.unnominateLocked(pod.UID)
	if it := q.pods[pod.UID]; it != nil {
		q.takeLocked(it)
		delete(q.pods, pod.UID)
	}
}

// Pop waits for the next pod and returns it; it is in flight then, until Return or Done. Pop
// returns nil once the queue is closed.
func (q *Queue) Pop() *framework.QueuedPod {
	q.mu.Lock()
	defer q.mu.Unlock()
	for {
		if q.closed {
			return nil
		}
		from := &q.active
		if from.Len() == 0 {
			from = &q.backoff
		}
		if from.Len() > 0 {
			it := from.first()
			q.takeLocked(it)
			delete(q.pods, it.Key())
			it.Attempts++
			q.journal.begin(it.Key())
			return it.QueuedPod
		}
		q.changed.Wait()
	}
}

// Done says that a pod is in flight no more and will not return, unless as a failed one.
func (q *Queue) Done(uid types.UID) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.journal.end(uid)
}

// Return puts back a pod that could not be scheduled, with its Rejectors set; none are taken for
// an unexpected error. nomination is as for Nominate. The result is the pod's newest version, which
// the caller may use while the queue has the pod; nil if the pod is gone or bound by now and was
// not put back.
func (q *Queue) Return(pod *framework.QueuedPod, nomination *string) *framework.PodInfo {
	q.mu.Lock()
	defer q.mu.Unlock()
	uid := pod.Key()
	defer q.journal.end(uid)
	current := q.opts.Current(pod.Pod())
	if current == nil || current.Spec.NodeName != "" {
		return nil
	}
	// It was added when it was updated, after Done: it is tried again for that, but what is known of
	// its failures counts.
	added := q.pods[uid]
	if added != nil {
		q.takeLocked(added)
	}
	if current != pod.Pod() {
		pod.PodInfo = framework.NewPodInfo(current)
	}
	if len(pod.Rejectors) == 0 {
		pod.Errors++
	} else {
		pod.Unschedulable++
		pod.Errors = 0
	}
	pod.Added, pod.Ready = time.Now(), time.Time{}
	info := pod.PodInfo
	q.nominateLocked(info, nomination)
	it := &item{QueuedPod: pod}
	q.pods[uid] = it
	if slices.ContainsFunc(q.journal.of(uid), func(h happened) bool { return h.failed && q.worthLocked(it, h) }) {
		it.Rejectors = sets.New[string]()
	}
	if added != nil || q.helpedLocked(it) {
		q.requeueLocked(it)
	} else {
		q.parkLocked(it)
	}
	return info
}

// helpedLocked says whether a pod that returns is to be tried again: after an unexpected error, and
// when something happened while it was in flight that may help it.
func (q *Queue) helpedLocked(it *item) bool {
	if len(it.Rejectors) == 0 {
		return true
	}
	for _, h := range q.journal.of(it.Key()) {
		if q.worthLocked(it, h) {
			return true
		}
	}
	return false
}

// Move is told of something that happened: old became new, either may be nil. It moves on the
// parked pods that may be helped by it and for which only, if not nil, holds.
func (q *Queue) Move(e framework.Event, old, new any, only func(pod *v1.Pod) bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.interestingLocked(e) {
		return
	}
	h := happened{event: e, old: old, new: new}
	for _, uid := range q.parked.UnsortedList() {
		if it := q.pods[uid]; only == nil || only(it.Pod()) {
			q.moveLocked(it, h)
		}
	}
	q.journal.add(h)
}

// Curious says whether there is any pod that events matter to. The cache has to know of an event
// before Curious is asked, for a pod that is popped after it said no.
func (q *Queue) Curious() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.parked) > 0 || len(q.journal.since) > 0
}

// Activate has a pod tried again without more ado, unless it is being tried; then it will be after
// that.
func (q *Queue) Activate(pod *v1.Pod) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if it := q.pods[pod.UID]; it != nil && it.place != &q.active {
		q.takeLocked(it)
		q.toActiveLocked(it)
		return
	}
	if q.journal.inFlight(pod.UID) {
		q.journal.add(happened{event: framework.Event{}, new: pod})
	}
}

// Failed has a pod tried again after its back-off, as after an unexpected error.
func (q *Queue) Failed(pod *v1.Pod) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if it := q.pods[pod.UID]; it != nil && it.place != &q.active {
		q.takeLocked(it)
		it.Rejectors = sets.New[string]()
		q.requeueLocked(it)
		return
	}
	if q.journal.inFlight(pod.UID) {
		q.journal.add(happened{event: framework.Event{}, new: pod, failed: true})
	}
}

// Reopened is told that the PreEnqueue plugin gate lets pod through from now on. Events that came
// while it did not are lost to the pod, so it is tried again if there was one that might have
// helped.
func (q *Queue) Reopened(pod *v1.Pod, gate string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if it := q.pods[pod.UID]; it != nil && it.place == nil && it.Gate == gate {
		q.takeLocked(it)
		q.requeueLocked(it)
	}
}

// Len returns how many pods are in each place.
func (q *Queue) Len() (active, backoff, parked int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.active.Len(), q.backoff.Len() + q.failed.Len(), len(q.parked)
}

// Close has Pop return nil from now on and stops the timers.
func (q *Queue) Close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	if q.wake != nil {
		q.wake.Stop()
	}
	if q.flush != nil {
		q.flush.Stop()
	}
	q.changed.Broadcast()
}

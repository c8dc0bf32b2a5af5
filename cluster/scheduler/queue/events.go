package queue

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coracle-project/coracle/cluster/scheduler/framework"
)

// happened is an event with the objects it is about. The zero event is that something wants pods
// tried again: the one in new, or all if new is nil.
type happened struct {
	event    framework.Event
	old, new any
	failed   bool // see Failed
}

// rules are the events that a profile's plugins asked for.
type rules struct {
	hints map[string][]framework.EventHint
	all   bool // a plugin wants all events
}

func newRules(p *framework.Profile) *rules {
	r := &rules{hints: make(map[string][]framework.EventHint)}
	for _, e := range p.Enqueuers {
		r.hints[e.Name()] = withTaints(append([]framework.EventHint{}, e.Events()...))
	}
	for _, name := range p.Rejectors() {
		if r.hints[name] == nil {
			r.all = true
		}
	}
	return r
}

// withTaints has changes of taints move on every pod that waits for nodes. They seldom help it, but
// may change why it waits, which users read after they have cordoned a node; upstream's does the
// same.
func withTaints(hints []framework.EventHint) []framework.EventHint {
	comes, taint := framework.Event{Kind: framework.Node, Action: framework.Add},
		framework.Event{Kind: framework.Node, Action: framework.UpdateNodeTaint}
	asked := func(e framework.Event) bool {
		return slices.ContainsFunc(hints, func(h framework.EventHint) bool { return h.Event.Matches(e) })
	}
	if asked(comes) && !asked(taint) {
		return append(hints, framework.EventHint{Event: taint})
	}
	return hints
}

// interestingLocked says whether any plugin asked for such events.
func (q *Queue) interestingLocked(e framework.Event) bool {
	for _, r := range q.rules {
		if r.all {
			return true
		}
		for _, hints := range r.hints {
			for _, h := range hints {
				if h.Event.Matches(e) {
					return true
				}
			}
		}
	}
	return false
}

// moveLocked moves it, which is parked, on if h may help it, and says whether it is parked no more.
func (q *Queue) moveLocked(it *item, h happened) bool {
	if it.Gate != "" && h.event != (framework.Event{}) && !q.askedLocked(it, it.Gate, h.event) {
		return false
	}
	if !q.worthLocked(it, h) {
		return false
	}
	q.parked.Delete(it.Key())
	q.requeueLocked(it)
	return it.place != nil
}

// askedLocked says whether plugin asked for events like e.
func (q *Queue) askedLocked(it *item, plugin string, e framework.Event) bool {
	r := q.rules[it.Pod().Spec.SchedulerName]
	if r == nil || r.hints[plugin] == nil {
		return true
	}
	for _, h := range r.hints[plugin] {
		if h.Event.Matches(e) {
			return true
		}
	}
	return false
}

// worthLocked says whether h may help it: one of the plugins that rejected it has to think so.
func (q *Queue) worthLocked(it *item, h happened) bool {
	if h.event == (framework.Event{}) {
		pod, ok := h.new.(*v1.Pod)
		return !ok || pod.UID == it.Key()
	}
	r := q.rules[it.Pod().Spec.SchedulerName]
	if len(it.Rejectors) == 0 || r == nil {
		return true
	}
	for plugin := range it.Rejectors {
		hints, ok := r.hints[plugin]
		if !ok {
			return true
		}
		for _, hint := range hints {
			if hint.Event.Matches(h.event) && (hint.Hint == nil || hint.Hint(it.PodInfo, h.old, h.new)) {
				return true
			}
		}
	}
	return false
}

// journal keeps what happens while pods are in flight, for when they return.
type journal struct {
	events []happened
	first  uint64               // number of events[0]
	since  map[types.UID]uint64 // pods in flight, with the number of the first event after they were popped
}

func (j *journal) begin(uid types.UID)         { j.since[uid] = j.first + uint64(len(j.events)) }
func (j *journal) inFlight(uid types.UID) bool { _, ok := j.since[uid]; return ok }

func (j *journal) add(h happened) {
	if len(j.since) > 0 {
		j.events = append(j.events, h)
	}
}

// of returns what happened since the pod was popped.
func (j *journal) of(uid types.UID) []happened {
	since, ok := j.since[uid]
	if !ok {
		return nil
	}
	return j.events[since-j.first:]
}

// end forgets the pod and the events that no other in flight has to look at.
func (j *journal) end(uid types.UID) {
	if _, ok := j.since[uid]; !ok {
		return
	}
	delete(j.since, uid)
	oldest := j.first + uint64(len(j.events))
	for _, n := range j.since {
		oldest = min(oldest, n)
	}
	drop := int(oldest - j.first)
	clear(j.events[:drop])
	j.events = j.events[drop:]
	if len(j.events) == 0 {
		j.events = nil
	}
	j.first = oldest
}

package scheduler

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime/debug"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/coracle-project/coracle/cluster/scheduler/framework"
)

// Fewer nodes than this, and a smaller part, are not worth ending the search for.
const (
	minNodesToFind        = 100
	minPercentageToFind   = 5
	maxAdaptivePercentage = 50
)

// errNoNodes is what a cluster without nodes gives.
var errNoNodes = errors.New("no nodes available to schedule pods")

// scheduleGuarded turns a panic in one pod's cycle into a failure of that pod: one odd object must
// not stop the scheduler, nor what else runs in this process.
func (s *Scheduler) scheduleGuarded(ctx context.Context, pod *framework.QueuedPod) {
	defer func() {
		if r := recover(); r != nil {
			s.log.Error("panic", "pod", pod.Pod().Namespace+"/"+pod.Pod().Name, "panic", r, "stack", string(debug.Stack()))
			s.cache.Forget(pod.Key())
			s.fail(ctx, s.profiles[pod.Pod().Spec.SchedulerName], pod, &failure{err: fmt.Errorf("panic: %v", r)})
		}
	}()
	s.schedule(ctx, pod)
}

// schedule works on one pod that was popped, up to the point from where it is bound.
func (s *Scheduler) schedule(ctx context.Context, pod *framework.QueuedPod) {
	p := pod.Pod()
	profile := s.profiles[p.Spec.SchedulerName]
	if p.DeletionTimestamp != nil {
		s.recorders[profile.Name].Eventf(p, nil, v1.EventTypeWarning, "FailedScheduling", "Scheduling",
			"skip schedule deleting pod: %v/%v", p.Namespace, p.Name)
		s.queue.Done(p.UID)
		return
	}
	// An update that came just before the pod was assumed may have brought it back.
	if s.cache.Assumed(p.UID) != nil {
		s.queue.Done(p.UID)
		return
	}
	s.cache.Update(s.snapshot)
	state := framework.NewCycleState(s.snapshot, s.queue.Nominations())
	node, fail := s.choose(ctx, profile, state, pod.PodInfo)
	if fail == nil {
		fail = s.assume(ctx, profile, state, pod, node)
	}
	if fail != nil {
		s.fail(ctx, profile, pod, fail)
	}
}

// noNomination takes a nomination away.
var noNomination = ""

// choose returns the best node for pod, or why there is none.
func (s *Scheduler) choose(ctx context.Context, profile *framework.Profile, state *framework.CycleState,
	pod *framework.PodInfo,
) (string, *failure) {
	if len(s.snapshot.Nodes) == 0 {
		// As if rejected by NodeName, which waits for nodes to come.
		return "", &failure{err: errNoNodes, rejected: true, plugins: sets.New("NodeName"), nomination: &noNomination}
	}
	feasible, misfit, err := s.feasible(ctx, profile, state, pod)
	if err != nil {
		return "", &failure{err: err, nomination: &noNomination}
	}
	if misfit != nil {
		f := &failure{err: misfit, rejected: true, plugins: misfit.Plugins, nomination: &noNomination}
		if profile.HasPostFilters() {
			var status *framework.Status
			f.nomination, status = profile.PostFilter(ctx, state, pod, misfit.Rejections)
			misfit.PostFilter = status.Message()
			if status.Code() == framework.Error {
				s.log.Error("preempt", "pod", pod.Pod().Namespace+"/"+pod.Pod().Name, "err", status.Err())
			}
		}
		return "", f
	}
	if len(feasible) == 1 {
		return feasible[0].Node().Name, nil
	}
	places := s.places
	if len(s.extenders) > 0 || len(places) != len(feasible) {
		places = nil // extenders may have left some out, or not all nodes were to be searched
	}
	scores, status := profile.Score(ctx, state, pod, feasible, places, s.parallel)
	if !status.OK() {
		return "", &failure{err: status.Err(), nomination: &noNomination}
	}
	if len(s.extenders) > 0 {
		s.scoreExtended(ctx, pod.Pod(), feasible, scores)
	}
	return feasible[highest(scores)].Node().Name, nil
}

// highest returns the place of the highest score: of equals any, each as likely as the others.
// Where the search starts would not spread them, since in a small cluster it covers all nodes and
// so always starts at the same one.
func highest(scores []int64) int {
	best, equals := 0, 1
	for i := 1; i < len(scores); i++ {
		switch {
		case scores[i] > scores[best]:
			best, equals = i, 1
		case scores[i] == scores[best]:
			if equals++; rand.IntN(equals) == 0 {
				best = i
			}
		}
	}
	return best
}

// feasible returns nodes that pod fits: all, or as many as are enough in a large cluster. If it
// fits none, a FitError says why.
func (s *Scheduler) feasible(ctx context.Context, profile *framework.Profile, state *framework.CycleState,
	pod *framework.PodInfo,
) ([]*framework.NodeInfo, *framework.FitError, error) {
	misfit := &framework.FitError{Nodes: len(s.snapshot.Nodes), Plugins: sets.New[string]()}
	names, narrowed, status := profile.PreFilter(ctx, state, pod)
	misfit.Plugins.Insert(narrowed...)
	if !status.OK() {
		if !status.Rejected() {
			return nil, nil, status.Err()
		}
		misfit.PreFilter = status.Message()
		misfit.Rejections = framework.NewRejections(s.snapshot)
		misfit.Rejections.Others = status
		if status.Plugin() != "" {
			misfit.Plugins.Insert(status.Plugin())
		}
		return nil, misfit, nil
	}
	// A pod that waited for room on one node most likely fits there, and no other does.
	if nominated := s.snapshot.Get(pod.Pod().Status.NominatedNodeName); nominated != nil {
		if profile.Filter(state, pod, nominated).OK() {
			left, err := s.extended(ctx, pod.Pod(), []*framework.NodeInfo{nominated}, framework.NewRejections(s.snapshot))
			if err != nil || len(left) > 0 {
				return left, nil, err
			}
		}
	}
	nodes := s.snapshot.Nodes
	if names != nil {
		nodes = nil
		for _, n := range s.snapshot.Nodes {
			if names.Has(n.Node().Name) {
				nodes = append(nodes, n)
			}
		}
	}
	feasible, tried, err := s.search(profile, state, pod, nodes)
	if err != nil {
		return nil, nil, err
	}
	var others *framework.Rejections // by extenders
	if len(s.extenders) > 0 && len(feasible) > 0 {
		others = framework.NewRejections(s.snapshot)
		if feasible, err = s.extended(ctx, pod.Pod(), feasible, others); err != nil {
			return nil, nil, err
		}
	}
	if len(feasible) > 0 {
		s.next = (s.next + tried) % len(s.snapshot.Nodes)
		return feasible, nil, nil
	}
	misfit.Rejections = framework.NewRejections(s.snapshot)
	if names != nil {
		misfit.Rejections.Others = framework.NewStatus(framework.Unresolvable, "", fmt.Sprintf("node(s) didn't satisfy plugin(s) %v", narrowed))
	}
	for i, n := range nodes {
		if s.statuses[i] != nil { // else an extender turned it down, or it was not tried
			misfit.Rejections.Set(n, s.statuses[i])
		}
	}
	if others != nil {
		misfit.Rejections.Add(others)
	}
	misfit.Rejections.Plugins(misfit.Plugins)
	s.next = (s.next + tried) % len(s.snapshot.Nodes)
	return nil, misfit, nil
}

// filterGrain is for how many nodes filtering is worth another goroutine.
const filterGrain = 64

// search filters nodes, beginning where the last search ended, until enough are found. It returns
// those that fit and how many were tried; s.places has where they are in the snapshot, if nodes are
// all of the snapshot's, and s.statuses why the others do not fit, by their place in nodes. What is
// found does not depend on which goroutine is faster.
func (s *Scheduler) search(profile *framework.Profile, state *framework.CycleState, pod *framework.PodInfo,
	nodes []*framework.NodeInfo,
) ([]*framework.NodeInfo, int, error) {
	all, whole := len(nodes), len(nodes) == len(s.snapshot.Nodes)
	if all == 0 {
		return nil, 0, nil
	}
	want := enough(all, s.percentages[profile.Name])
	if cap(s.statuses) < all {
		s.statuses = make([]*framework.Status, all)
	}
	s.statuses = s.statuses[:all]
	if len(s.extenders) > 0 {
		clear(s.statuses) // not all may be tried, though none is found that extenders leave
	}
	found := make([]*framework.NodeInfo, 0, want)
	s.places = s.places[:0]
	start := s.next % all
	for tried := 0; ; {
		// No more than may still be needed, so that none is filtered for nothing.
		size := min(want-len(found), all-tried)
		s.parallel.Do(size, filterGrain, func(from, to int) {
			for i := start + tried + from; i < start+tried+to; i++ {
				if whole {
					s.statuses[i%all] = profile.FilterAt(state, pod, i%all)
				} else {
					s.statuses[i%all] = profile.Filter(state, pod, nodes[i%all])
				}
			}
		})
		for i := start + tried; i < start+tried+size; i++ {
			switch status := s.statuses[i%all]; {
			case status.OK():
				found = append(found, nodes[i%all])
				if whole {
					s.places = append(s.places, i%all)
				}
			case !status.Rejected():
				return nil, 0, status.Err()
			}
		}
		if tried += size; len(found) == want || tried == all {
			return found, tried, nil
		}
	}
}

// enough returns how many feasible nodes out of all are enough.
func enough(all, percentage int) int {
	if all < minNodesToFind {
		return all
	}
	if percentage == 0 {
		percentage = max(maxAdaptivePercentage-all/125, minPercentageToFind)
	}
	return min(max(all*percentage/100, minNodesToFind), all)
}

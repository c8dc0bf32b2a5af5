package preemption

import (
	"errors"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"

	"github.com/coracle-project/coracle/cluster/scheduler/framework"
)

// candidate is a node with the pods that have to go, the most important first.
type candidate struct {
	node    string
	victims []*v1.Pod
	// violations is how many of them a disruption budget wants to keep.
	violations int
}

func lower(victim *framework.PodInfo, pod *v1.Pod) bool {
	return victim.Priority() < corev1helpers.PodPriority(pod)
}

// victims works out which pods have to go from node, which is a copy as state is. All that may are
// taken off; if the pod fits then, they are put back, the most important first and those that a
// budget wants to keep before all others, as long as it still fits.
func (pl *Plugin) victims(state *framework.CycleState, pod *framework.PodInfo, node *framework.NodeInfo,
	budgets []*policyv1.PodDisruptionBudget,
) (candidate, *framework.Status) {
	profile := pl.handle.Profile
	remove := func(p *framework.PodInfo) *framework.Status {
		if err := node.Remove(p); err != nil {
			return failed(err)
		}
		return profile.RemovePod(state, pod, p, node)
	}
	var potential []*framework.PodInfo
	for _, p := range node.Pods {
		if lower(p, pod.Pod()) {
			potential = append(potential, p)
		}
	}
	if len(potential) == 0 {
		return candidate{}, noVictims
	}
	for _, p := range potential {
		if s := remove(p); !s.OK() {
			return candidate{}, s
		}
	}
	if s := profile.Filter(state, pod, node); !s.OK() {
		return candidate{}, s
	}

	now := metav1.NewTime(time.Now())
	slices.SortStableFunc(potential, func(a, b *framework.PodInfo) int { return moreImportant(a.Pod(), b.Pod(), now) })
	c := candidate{node: node.Node().Name}
	violating, others := split(potential, budgets)
	reprieve := func(pods []*framework.PodInfo) *framework.Status {
		for _, p := range pods {
			node.Add(p)
			if s := profile.AddPod(state, pod, p, node); !s.OK() {
				return s
			}
			if profile.Filter(state, pod, node).OK() {
				continue
			}
			if s := remove(p); !s.OK() {
				return s
			}
			c.victims = append(c.victims, p.Pod())
		}
		return nil
	}
	if s := reprieve(violating); !s.OK() {
		return candidate{}, s
	}
	c.violations = len(c.victims)
	if s := reprieve(others); !s.OK() {
		return candidate{}, s
	}
	if len(c.victims) == 0 {
		return candidate{}, failed(errors.New("expected at least one victim pod on node " + c.node))
	}
	slices.SortStableFunc(c.victims, func(a, b *v1.Pod) int { return moreImportant(a, b, now) })
	return c, nil
}

// startOf returns when pod started, which one that has not yet does now.
func startOf(pod *v1.Pod, now metav1.Time) metav1.Time {
	if pod.Status.StartTime != nil {
		return *pod.Status.StartTime
	}
	return now
}

// moreImportant orders pods: by priority, then those first that have run longer.
func moreImportant(a, b *v1.Pod, now metav1.Time) int {
	if pa, pb := corev1helpers.PodPriority(a), corev1helpers.PodPriority(b); pa != pb {
		if pa > pb {
			return -1
		}
		return 1
	}
	return startOf(a, now).Time.Compare(startOf(b, now).Time)
}

// split returns the pods that budgets want to keep if those before them in the list are removed
// too, and the others.
func split(pods []*framework.PodInfo, budgets []*policyv1.PodDisruptionBudget) (violating, others []*framework.PodInfo) {
	left := make([]int32, len(budgets))
	selectors := make([]labels.Selector, len(budgets))
	for i, b := range budgets {
		left[i] = b.Status.DisruptionsAllowed
		// A selector that cannot be parsed, or that matches all, matches none here.
		if s, err := metav1.LabelSelectorAsSelector(b.Spec.Selector); err == nil && !s.Empty() {
			selectors[i] = s
		}
	}
	for _, p := range pods {
		pod, violates := p.Pod(), false
		for i, b := range budgets {
			if len(pod.Labels) == 0 || b.Namespace != pod.Namespace || selectors[i] == nil || !selectors[i].Matches(labels.Set(pod.Labels)) {
				continue
			}
			if _, counted := b.Status.DisruptedPods[pod.Name]; counted {
				continue // the API server has taken it off the budget already
			}
			left[i]--
			violates = violates || left[i] < 0
		}
		if violates {
			violating = append(violating, p)
		} else {
			others = append(others, p)
		}
	}
	return violating, others
}

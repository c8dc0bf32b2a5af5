package plugins

import (
	"context"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"github.com/coracle-project/coracle/cluster/scheduler/framework"
)

// nodeAffinity matches pods' node selectors and node affinity.
type nodeAffinity struct{}

var (
	errNodeAffinity = framework.NewStatus(framework.Unresolvable, "NodeAffinity", "node(s) didn't match Pod's node affinity/selector")
	errConflict     = framework.NewStatus(framework.Unresolvable, "NodeAffinity", "pod affinity terms conflict")

	requiredAffinity  = framework.NewKey[*nodeaffinity.RequiredNodeAffinity]()
	preferredAffinity = framework.NewKey[*nodeaffinity.PreferredSchedulingTerms]()
)

func (nodeAffinity) Name() string { return "NodeAffinity" }

// requiredTerms returns the terms of which one has to match; false if there is no such affinity.
func requiredTerms(pod *v1.Pod) ([]v1.NodeSelectorTerm, bool) {
	if a := pod.Spec.Affinity; a != nil && a.NodeAffinity != nil {
		if required := a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution; required != nil {
			return required.NodeSelectorTerms, true
		}
	}
	return nil, false
}

// PreFilter parses what is required. When every term names nodes, only those can fit.
func (nodeAffinity) PreFilter(_ context.Context, state *framework.CycleState, pod *framework.PodInfo) (sets.Set[string], *framework.Status) {
	p := pod.Pod()
	terms, any := requiredTerms(p)
	if !any && p.Spec.NodeSelector == nil {
		return nil, framework.Skipped
	}
	required := nodeaffinity.GetRequiredNodeAffinity(p)
	requiredAffinity.Write(state, &required)

	if len(terms) == 0 {
		return nil, nil
	}
	only := sets.Set[string]{}
	for _, term := range terms {
		var names sets.Set[string] // of this term; its requirements are ANDed
		for _, r := range term.MatchFields {
			if r.Key != metav1.ObjectNameField || r.Operator != v1.NodeSelectorOpIn {
				continue
			}
			if names == nil {
				names = sets.New(r.Values...)
			} else {
				names = names.Intersection(sets.New(r.Values...))
			}
		}
		if names == nil {
			return nil, nil // terms are ORed, and this one may match any node
		}
		only = only.Union(names)
	}
	if len(only) == 0 {
		return nil, errConflict
	}
	return only, nil
}

func (nodeAffinity) Filter(state *framework.CycleState, _ *framework.PodInfo, node *framework.NodeInfo) *framework.Status {
	// What cannot be parsed does not match.
	if match, _ := requiredAffinity.Read(state).Match(node.Node()); !match {
		return errNodeAffinity
	}
	return nil
}

func (pl nodeAffinity) PreScore(_ context.Context, state *framework.CycleState, pod *framework.PodInfo, _ []*framework.NodeInfo) *framework.Status {
	a := pod.Pod().Spec.Affinity
	if a == nil || a.NodeAffinity == nil || a.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution == nil {
		return framework.Skipped
	}
	preferred, err := nodeaffinity.NewPreferredSchedulingTerms(a.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution)
	if err != nil {
		return framework.Errored(pl.Name(), err)
	}
	preferredAffinity.Write(state, preferred)
	return nil
}

// Score sums up the weights of the preferred terms that match.
func (nodeAffinity) Score(state *framework.CycleState, _ *framework.PodInfo, node *framework.NodeInfo) (int64, *framework.Status) {
	return preferredAffinity.Read(state).Score(node.Node()), nil
}

func (nodeAffinity) Normalize(_ *framework.CycleState, scores []int64, _ []*framework.NodeInfo) {
	normalize(scores)
}

func (nodeAffinity) Events() []framework.EventHint {
	return []framework.EventHint{{
		Event: framework.Event{Kind: framework.Node, Action: framework.Add | framework.UpdateNodeLabel},
		Hint: framework.OnNode(func(pod *framework.PodInfo, old, new *v1.Node) bool {
			required := nodeaffinity.GetRequiredNodeAffinity(pod.Pod())
			is, err := required.Match(new)
			if err != nil || !is || old == nil {
				return err != nil || is
			}
			was, err := required.Match(old)
			return err != nil || !was
		}),
	}}
}

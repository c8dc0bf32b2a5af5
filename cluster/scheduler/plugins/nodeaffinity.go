package plugins

import (
	"context"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"github.com/coracle-project/coracle/cluster/scheduler/framework"
)

// nodeAffinity matches pods' node selectors and node affinity, and the affinity that is added to
// each.
type nodeAffinity struct {
	required  *nodeaffinity.LazyErrorNodeSelector
	preferred *nodeaffinity.PreferredSchedulingTerms
}

// newNodeAffinity returns the plugin. What cannot be parsed of the added affinity matches no node.
func newNodeAffinity(args Args) nodeAffinity {
	var pl nodeAffinity
	if a := args.AddedAffinity; a != nil {
		if required := a.RequiredDuringSchedulingIgnoredDuringExecution; required != nil {
			pl.required = nodeaffinity.NewLazyErrorNodeSelector(required)
		}
		if terms := a.PreferredDuringSchedulingIgnoredDuringExecution; len(terms) > 0 {
			pl.preferred, _ = nodeaffinity.NewPreferredSchedulingTerms(terms)
		}
	}
	return pl
}

// adds says whether node meets the added affinity.
func (pl nodeAffinity) adds(node *v1.Node) bool {
	if pl.required == nil {
		return true
	}
	match, _ := pl.required.Match(node)
	return match
}

var (
	errNodeAffinity = framework.NewStatus(framework.Unresolvable, "NodeAffinity", "node(s) didn't match Pod's node affinity/selector")
	errEnforced     = framework.NewStatus(framework.Unresolvable, "NodeAffinity", "node(s) didn't match scheduler-enforced node affinity")
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
func (pl nodeAffinity) PreFilter(_ context.Context, state *framework.CycleState,
	pod *framework.PodInfo,
) (sets.Set[string], *framework.Status) {
	p := pod.Pod()
	terms, any := requiredTerms(p)
	if !any && p.Spec.NodeSelector == nil && pl.required == nil {
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

func (pl nodeAffinity) Filter(state *framework.CycleState, _ *framework.PodInfo, node *framework.NodeInfo) *framework.Status {
	if !pl.adds(node.Node()) {
		return errEnforced
	}
	// What cannot be parsed does not match.
	if match, _ := requiredAffinity.Read(state).Match(node.Node()); !match {
		return errNodeAffinity
	}
	return nil
}

func (pl nodeAffinity) PreScore(_ context.Context, state *framework.CycleState, pod *framework.PodInfo,
	_ []*framework.NodeInfo,
) *framework.Status {
	a := pod.Pod().Spec.Affinity
	if a == nil || a.NodeAffinity == nil || a.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution == nil {
		if pl.preferred == nil {
			return framework.Skipped
		}
		return nil
	}
	preferred, err := nodeaffinity.NewPreferredSchedulingTerms(a.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution)
	if err != nil {
		return framework.Errored(pl.Name(), err)
	}
	preferredAffinity.Write(state, preferred)
	return nil
}

// Score sums up the weights of the preferred terms that match.
func (pl nodeAffinity) Score(state *framework.CycleState, _ *framework.PodInfo, node *framework.NodeInfo) (int64, *framework.Status) {
	var score int64
	if pl.preferred != nil {
		score = pl.preferred.Score(node.Node())
	}
	if own := preferredAffinity.Read(state); own != nil {
		score += own.Score(node.Node())
	}
	return score, nil
}

func (nodeAffinity) Normalize(_ *framework.CycleState, scores []int64, _ []*framework.NodeInfo) {
	framework.Normalize(scores)
}

func (pl nodeAffinity) Events() []framework.EventHint {
	return []framework.EventHint{{
		Event: framework.Event{Kind: framework.Node, Action: framework.Add | framework.UpdateNodeLabel},
		Hint: framework.OnNode(func(pod *framework.PodInfo, old, new *v1.Node) bool {
			if !pl.adds(new) {
				return false
			}
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

package plugins

import (
	"context"
	"fmt"
	"maps"
	"math"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"github.com/coracle-project/coracle/cluster/scheduler/framework"
)

// podTopologySpread keeps pods that match a constraint's selector evenly spread over the values of
// a node label: strictly (this file) or as a preference (podtopologyspreadscore.go). Pods without
// constraints are spread, as a preference, over hosts and zones with the pods of their services and
// controllers.
type podTopologySpread struct {
	handle *framework.Handle
	owners owners
	counts perNode[int32]
	// defaults, if not nil, are instead of spreadByDefault.
	defaults *[]v1.TopologySpreadConstraint
}

// newPodTopologySpread returns the plugin.
func newPodTopologySpread(h *framework.Handle, args Args) *podTopologySpread {
	return &podTopologySpread{handle: h, owners: newOwners(h.Informers), defaults: args.Spread}
}

const spreadReason = "node(s) didn't match pod topology spread constraints"

var (
	errSpread      = framework.NewStatus(framework.Unschedulable, "PodTopologySpread", spreadReason)
	errSpreadLabel = framework.NewStatus(framework.Unresolvable, "PodTopologySpread", spreadReason+" (missing required label)")

	spreadFilterKey = framework.NewKey[*spreadFilter]()
)

// constraint is a parsed topology spread constraint.
type constraint struct {
	key                        string
	maxSkew, minDomains        int32
	selector                   labels.Selector
	honorAffinity, honorTaints bool
}

// spreadFilter is what Filter needs of a pod with strict constraints.
type spreadFilter struct {
	constraints []constraint
	required    inclusion
	// matching[i] has the number of matching pods by value of constraint i's label, over the nodes
	// that count; lowest[i] is the smallest of them.
	matching []map[string]int
	lowest   []int
}

// Clone is for what-ifs: matching and lowest are changed by them.
func (s *spreadFilter) Clone() any {
	c := *s
	c.matching = make([]map[string]int, len(s.matching))
	for i, m := range s.matching {
		c.matching[i] = maps.Clone(m)
	}
	c.lowest = append([]int(nil), s.lowest...)
	return &c
}

func (s *spreadFilter) findLowest(i int) {
	lowest := math.MaxInt32
	for _, n := range s.matching[i] {
		lowest = min(lowest, n)
	}
	s.lowest[i] = lowest
}

// inclusion says which nodes count for a pod.
type inclusion struct {
	pod      *v1.Pod
	required nodeaffinity.RequiredNodeAffinity
	anyNode  bool // the pod requires nothing of nodes
}

func newInclusion(pod *v1.Pod) inclusion {
	_, has := requiredTerms(pod)
	return inclusion{pod, nodeaffinity.GetRequiredNodeAffinity(pod), !has && len(pod.Spec.NodeSelector) == 0}
}

func (in *inclusion) includes(c *constraint, node *v1.Node) bool {
	if c.honorAffinity && !in.anyNode {
		if match, _ := in.required.Match(node); !match {
			return false
		}
	}
	return !c.honorTaints || tolerated(in.pod, node.Spec.Taints)
}

func (*podTopologySpread) Name() string { return "PodTopologySpread" }

// parseConstraints returns those of the pod's constraints that are to be met in the given way.
func parseConstraints(list []v1.TopologySpreadConstraint, pod *v1.Pod, action v1.UnsatisfiableConstraintAction) ([]constraint, error) {
	var parsed []constraint
	for i := range list {
		c := &list[i]
		if c.WhenUnsatisfiable != action {
			continue
		}
		selector, err := metav1.LabelSelectorAsSelector(c.LabelSelector)
		if err != nil {
			return nil, err
		}
		parsed = append(parsed, constraint{
			key: c.TopologyKey, maxSkew: c.MaxSkew, minDomains: valueOr(c.MinDomains, 1),
			selector:      withLabelKeys(selector, c.MatchLabelKeys, pod.Labels),
			honorAffinity: valueOr(c.NodeAffinityPolicy, v1.NodeInclusionPolicyHonor) == v1.NodeInclusionPolicyHonor,
			honorTaints:   valueOr(c.NodeTaintsPolicy, v1.NodeInclusionPolicyIgnore) == v1.NodeInclusionPolicyHonor,
		})
	}
	return parsed, nil
}

func valueOr[T any](p *T, otherwise T) T {
	if p == nil {
		return otherwise
	}
	return *p
}

// withLabelKeys returns selector narrowed to the pods that have the same values as podLabels for
// keys.
func withLabelKeys(selector labels.Selector, keys []string, podLabels map[string]string) labels.Selector {
	same := labels.Set{}
	for _, key := range keys {
		if value, ok := podLabels[key]; ok {
			same[key] = value
		}
	}
	requirements, selectable := selector.Requirements()
	if len(same) == 0 || !selectable {
		return selector
	}
	return labels.SelectorFromSet(same).Add(requirements...)
}

// matchesOf returns by slot how many pods in the pod's namespace, but for terminating ones, the
// constraint's selector matches. A selector that matches all counts none.
func (pl *podTopologySpread) matchesOf(c *constraint, namespace string, nodes *framework.Snapshot) []int32 {
	if c.selector.Empty() {
		return make([]int32, nodes.Slots)
	}
	matches := func(p *framework.PodInfo) bool {
		pod := p.Pod()
		return pod.DeletionTimestamp == nil && pod.Namespace == namespace && c.selector.Matches(labels.Set(pod.Labels))
	}
	return pl.counts.of(namespace+"/"+c.selector.String(), nodes, pl.handle.Parallel, func(n *framework.NodeInfo) int32 {
		return count(n.Pods, matches)
	})
}

// PreFilter counts the pods that match strict constraints in each domain.
func (pl *podTopologySpread) PreFilter(_ context.Context, state *framework.CycleState,
	pod *framework.PodInfo,
) (sets.Set[string], *framework.Status) {
	p := pod.Pod()
	constraints, err := pl.strictConstraints(p)
	if err != nil {
		return nil, framework.Errored(pl.Name(), fmt.Errorf("obtaining pod's hard topology spread constraints: %w", err))
	}
	if len(constraints) == 0 {
		return nil, framework.Skipped
	}
	s := &spreadFilter{
		constraints: constraints, required: newInclusion(p),
		matching: make([]map[string]int, len(constraints)), lowest: make([]int, len(constraints)),
	}
	for i := range constraints {
		c := &constraints[i]
		s.matching[i] = make(map[string]int)
		matches := pl.matchesOf(c, p.Namespace, state.Nodes)
		for _, n := range state.Nodes.Nodes {
			if node := n.Node(); hasKeys(node, constraints) && s.required.includes(c, node) {
				s.matching[i][node.Labels[c.key]] += int(matches[n.Slot])
			}
		}
		s.findLowest(i)
	}
	spreadFilterKey.Write(state, s)
	return nil, nil
}

// hasKeys says whether node has the labels of all constraints.
func hasKeys(node *v1.Node, constraints []constraint) bool {
	for i := range constraints {
		if _, ok := node.Labels[constraints[i].key]; !ok {
			return false
		}
	}
	return true
}

func (pl *podTopologySpread) AddPod(state *framework.CycleState, pod, added *framework.PodInfo,
	node *framework.NodeInfo,
) *framework.Status {
	spreadFilterKey.Read(state).count(pod, added, node.Node(), 1)
	return nil
}

func (pl *podTopologySpread) RemovePod(state *framework.CycleState, pod, removed *framework.PodInfo,
	node *framework.NodeInfo,
) *framework.Status {
	spreadFilterKey.Read(state).count(pod, removed, node.Node(), -1)
	return nil
}

func (s *spreadFilter) count(pod, other *framework.PodInfo, node *v1.Node, by int) {
	o := other.Pod()
	if o.Namespace != pod.Pod().Namespace || !hasKeys(node, s.constraints) {
		return
	}
	for i := range s.constraints {
		c := &s.constraints[i]
		if c.selector.Matches(labels.Set(o.Labels)) && s.required.includes(c, node) {
			s.matching[i][node.Labels[c.key]] += by
			s.findLowest(i)
		}
	}
}

// Filter turns down nodes in whose domain there would be too many pods more than in the emptiest.
func (pl *podTopologySpread) Filter(state *framework.CycleState, pod *framework.PodInfo, node *framework.NodeInfo) *framework.Status {
	s := spreadFilterKey.Read(state)
	for i := range s.constraints {
		c := &s.constraints[i]
		value, ok := node.Node().Labels[c.key]
		if !ok {
			return errSpreadLabel
		}
		lowest := s.lowest[i]
		if len(s.matching[i]) < int(c.minDomains) {
			lowest = 0
		}
		with := s.matching[i][value]
		if c.selector.Matches(labels.Set(pod.Pod().Labels)) {
			with++
		}
		if with-lowest > int(c.maxSkew) {
			return errSpread
		}
	}
	return nil
}

func (pl *podTopologySpread) Events() []framework.EventHint {
	return []framework.EventHint{
		{
			Event: framework.Event{
				Kind:   framework.Pod,
				Action: framework.Add | framework.UpdatePodLabel | framework.UpdatePodToleration | framework.Delete,
			},
			Hint: framework.OnPod(pl.changedByPod),
		}, {
			Event: framework.Event{
				Kind:   framework.Node,
				Action: framework.Add | framework.Delete | framework.UpdateNodeLabel | framework.UpdateNodeTaint,
			},
			Hint: framework.OnNode(pl.changedByNode),
		},
	}
}

// changedByPod says whether a pod that came, went or changed is one that constraints count.
func (pl *podTopologySpread) changedByPod(pod *framework.PodInfo, old, new *v1.Pod) bool {
	p := pod.Pod()
	counts := func(o *v1.Pod) bool {
		return o == nil || o.UID == p.UID || onNode(o) && o.Namespace == p.Namespace
	}
	if !counts(old) || !counts(new) {
		return false
	}
	constraints, err := pl.strictConstraints(p)
	if err != nil {
		return true
	}
	for i := range constraints {
		c := &constraints[i]
		was := old != nil && c.selector.Matches(labels.Set(old.Labels))
		is := new != nil && c.selector.Matches(labels.Set(new.Labels))
		if was != is {
			return true
		}
		if c.honorTaints && old != nil && new != nil && new.UID == p.UID && len(old.Spec.Tolerations) != len(new.Spec.Tolerations) {
			return true
		}
	}
	return false
}

// changedByNode says whether a node that came, went or changed is in a domain of constraints.
func (pl *podTopologySpread) changedByNode(pod *framework.PodInfo, old, new *v1.Node) bool {
	p := pod.Pod()
	constraints, err := pl.strictConstraints(p)
	if err != nil {
		return true
	}
	was := old != nil && hasKeys(old, constraints)
	is := new != nil && hasKeys(new, constraints)
	if !was || !is {
		return was || is
	}
	for i := range constraints {
		if key := constraints[i].key; old.Labels[key] != new.Labels[key] {
			return true
		}
	}
	return !equality.Semantic.DeepEqual(old.Spec.Taints, new.Spec.Taints)
}

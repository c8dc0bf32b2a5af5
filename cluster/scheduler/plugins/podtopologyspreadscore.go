package plugins

import (
	"context"
	"fmt"
	"math"

	v1 "k8s.io/api/core/v1"

	"github.com/coracle-project/coracle/cluster/scheduler/framework"
)

// spreadByDefault is what pods without constraints of their own are spread by.
var spreadByDefault = []constraint{
	{key: v1.LabelHostname, maxSkew: 3, minDomains: 1, honorAffinity: true},
	{key: v1.LabelTopologyZone, maxSkew: 5, minDomains: 1, honorAffinity: true},
}

var spreadScoreKey = framework.NewKey[*spreadScore]()

// spreadScore is what Score needs of a pod with preferred constraints.
type spreadScore struct {
	constraints []constraint
	// ignored has the slots of nodes that lack a label, if all labels are needed.
	ignored map[int]bool
	// matching[i] has the number of matching pods by value of constraint i's label; for host names
	// it is nil and onNode[i] has the numbers by slot instead.
	matching []map[string]int64
	onNode   [][]int32
	// weight makes up for how many domains there are to spread over.
	weight []float64
}

// preferredConstraints returns the constraints that pod would like to meet, and whether nodes need
// the labels of all of them to count.
func (pl *podTopologySpread) preferredConstraints(pod *v1.Pod) (constraints []constraint, needAll bool, err error) {
	if len(pod.Spec.TopologySpreadConstraints) > 0 {
		constraints, err = parseConstraints(pod.Spec.TopologySpreadConstraints, pod, v1.ScheduleAnyway)
		if err != nil {
			err = fmt.Errorf("obtaining pod's soft topology spread constraints: %w", err)
		}
		return constraints, true, err
	}
	if pl.defaults != nil {
		constraints, err = pl.defaultConstraints(pod, v1.ScheduleAnyway)
		return constraints, true, err
	}
	selector := pl.owners.selector(pod)
	if selector.Empty() {
		return nil, false, nil
	}
	for _, c := range spreadByDefault {
		c.selector = selector
		constraints = append(constraints, c)
	}
	return constraints, false, nil
}

// defaultConstraints returns the constraints of pods without any that the configuration says, for
// the pods that pod belongs with.
func (pl *podTopologySpread) defaultConstraints(pod *v1.Pod, action v1.UnsatisfiableConstraintAction) ([]constraint, error) {
	constraints, err := parseConstraints(*pl.defaults, pod, action)
	if err != nil || len(constraints) == 0 {
		return nil, err
	}
	selector := pl.owners.selector(pod)
	if selector.Empty() {
		return nil, nil
	}
	for i := range constraints {
		constraints[i].selector = selector
	}
	return constraints, nil
}

// strictConstraints returns the constraints that pod has to meet.
func (pl *podTopologySpread) strictConstraints(pod *v1.Pod) ([]constraint, error) {
	if len(pod.Spec.TopologySpreadConstraints) == 0 && pl.defaults != nil {
		return pl.defaultConstraints(pod, v1.DoNotSchedule)
	}
	return parseConstraints(pod.Spec.TopologySpreadConstraints, pod, v1.DoNotSchedule)
}

// PreScore counts the pods that match preferred constraints in each domain of feasible nodes.
func (pl *podTopologySpread) PreScore(_ context.Context, state *framework.CycleState, pod *framework.PodInfo,
	feasible []*framework.NodeInfo,
) *framework.Status {
	p := pod.Pod()
	constraints, needAll, err := pl.preferredConstraints(p)
	if err != nil {
		return framework.Errored(pl.Name(), err)
	}
	if len(constraints) == 0 {
		return framework.Skipped
	}
	s := &spreadScore{
		constraints: constraints, ignored: make(map[int]bool), weight: make([]float64, len(constraints)),
		matching: make([]map[string]int64, len(constraints)), onNode: make([][]int32, len(constraints)),
	}
	for _, n := range feasible {
		if needAll && !hasKeys(n.Node(), constraints) {
			s.ignored[n.Slot] = true
		}
	}
	in := newInclusion(p)
	for i := range constraints {
		c := &constraints[i]
		matches := pl.matchesOf(c, p.Namespace, state.Nodes)
		domains := len(feasible) - len(s.ignored)
		if c.key == v1.LabelHostname {
			s.onNode[i] = matches
		} else {
			s.matching[i] = domainsOf(c.key, feasible, s.ignored)
			domains = len(s.matching[i])
			pl.countDomains(s, i, matches, in, needAll, state.Nodes)
		}
		s.weight[i] = math.Log(float64(domains + 2))
	}
	spreadScoreKey.Write(state, s)
	return nil
}

// domainsOf returns the values of label key that feasible nodes have; a node without counts as "".
func domainsOf(key string, feasible []*framework.NodeInfo, ignored map[int]bool) map[string]int64 {
	domains := make(map[string]int64)
	for _, n := range feasible {
		if !ignored[n.Slot] {
			domains[n.Node().Labels[key]] = 0
		}
	}
	return domains
}

func (pl *podTopologySpread) countDomains(s *spreadScore, i int, matches []int32, in inclusion, needAll bool, nodes *framework.Snapshot) {
	c := &s.constraints[i]
	for _, n := range nodes.Nodes {
		if matches[n.Slot] == 0 {
			continue
		}
		node := n.Node()
		if needAll && !hasKeys(node, s.constraints) || !in.includes(c, node) {
			continue
		}
		value := node.Labels[c.key]
		if _, ok := s.matching[i][value]; ok {
			s.matching[i][value] += int64(matches[n.Slot])
		}
	}
}

// Score is the number of matching pods around the node: the fewer the better.
func (pl *podTopologySpread) Score(state *framework.CycleState, _ *framework.PodInfo, node *framework.NodeInfo) (int64, *framework.Status) {
	s := spreadScoreKey.Read(state)
	if s.ignored[node.Slot] {
		return 0, nil
	}
	var score float64
	for i := range s.constraints {
		c := &s.constraints[i]
		value, ok := node.Node().Labels[c.key]
		if !ok {
			continue
		}
		var n int64
		if s.onNode[i] != nil {
			n = int64(s.onNode[i][node.Slot])
		} else {
			n = s.matching[i][value]
		}
		score += float64(n)*s.weight[i] + float64(c.maxSkew-1)
	}
	return int64(math.Round(score)), nil
}

// Normalize gives the nodes with the fewest matching pods around them MaxScore, and ignored ones 0.
func (pl *podTopologySpread) Normalize(state *framework.CycleState, scores []int64, nodes []*framework.NodeInfo) {
	s := spreadScoreKey.Read(state)
	lowest, highest := int64(math.MaxInt64), int64(0)
	for i, score := range scores {
		if !s.ignored[nodes[i].Slot] {
			lowest, highest = min(lowest, score), max(highest, score)
		}
	}
	for i, score := range scores {
		switch {
		case s.ignored[nodes[i].Slot]:
			scores[i] = 0
		case highest == 0:
			scores[i] = framework.MaxScore
		default:
			scores[i] = framework.MaxScore * (highest + lowest - score) / highest
		}
	}
}

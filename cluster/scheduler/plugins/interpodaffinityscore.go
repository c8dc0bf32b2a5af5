package plugins

import (
	"context"
	"math"

	v1 "k8s.io/api/core/v1"

	"github.com/coracle-project/coracle/cluster/scheduler/framework"
)

// affinityScores are what each domain gets.
var affinityScores = framework.NewKey[domains]()

// PreScore sums up in each domain the weights of the new pod's preferences that pods there match,
// and of the preferences of pods there that the new pod matches.
func (pl *interPodAffinity) PreScore(_ context.Context, state *framework.CycleState, pod *framework.PodInfo,
	_ []*framework.NodeInfo,
) *framework.Status {
	own := len(pod.PreferredAffinity) + len(pod.PreferredAntiAffinity)
	if own == 0 && (len(state.Nodes.WithAffinity) == 0 || pl.ignorePreferred) {
		return framework.Skipped
	}
	scores := make(domains)
	pl.scoreByOthers(scores, pod.Pod(), state.Nodes)
	err := pl.scoreByOwn(scores, pod.PreferredAffinity, 1, state.Nodes)
	if err == nil {
		err = pl.scoreByOwn(scores, pod.PreferredAntiAffinity, -1, state.Nodes)
	}
	if err != nil {
		return framework.Errored(pl.Name(), err)
	}
	if len(scores) == 0 {
		return framework.Skipped
	}
	affinityScores.Write(state, scores)
	return nil
}

func (pl *interPodAffinity) scoreByOwn(scores domains, terms []framework.WeightedTerm, sign int64, nodes *framework.Snapshot) error {
	for i := range terms {
		resolved, err := pl.resolve([]framework.Term{terms[i].Term})
		if err != nil {
			return err
		}
		matches := pl.matches(resolved, nodes)
		for _, n := range nodes.Nodes {
			scores.add(n.Node(), terms[i].TopologyKey, sign*int64(terms[i].Weight)*int64(matches[n.Slot]))
		}
	}
	return nil
}

func (pl *interPodAffinity) scoreByOthers(scores domains, pod *v1.Pod, nodes *framework.Snapshot) {
	if len(nodes.WithAffinity) == 0 {
		return
	}
	namespace := pl.namespaceLabels(pod.Namespace)
	byNode := pl.drawing.of(identity(pod, namespace), nodes, pl.handle.Parallel, func(n *framework.NodeInfo) []keyedScore {
		var list []keyedScore
		count := func(t *framework.Term, weight int64) {
			if t.Matches(pod, namespace) {
				list = addScore(list, t.TopologyKey, weight)
			}
		}
		for _, p := range n.PodsWithAffinity {
			for i := range p.RequiredAffinity {
				count(&p.RequiredAffinity[i], pl.hardWeight)
			}
			for i := range p.PreferredAffinity {
				count(&p.PreferredAffinity[i].Term, int64(p.PreferredAffinity[i].Weight))
			}
			for i := range p.PreferredAntiAffinity {
				count(&p.PreferredAntiAffinity[i].Term, -int64(p.PreferredAntiAffinity[i].Weight))
			}
		}
		return list
	})
	for _, i := range nodes.WithAffinity {
		n := nodes.Nodes[i]
		for _, ks := range byNode[n.Slot] {
			scores.add(n.Node(), ks.key, ks.score)
		}
	}
}

// Score sums up what the domains that the node is in get.
func (pl *interPodAffinity) Score(state *framework.CycleState, _ *framework.PodInfo, info *framework.NodeInfo) (int64, *framework.Status) {
	var sum int64
	node := info.Node()
	for key, values := range affinityScores.Read(state) {
		if value, ok := node.Labels[key]; ok {
			sum += values[value]
		}
	}
	return sum, nil
}

// Normalize stretches the scores, which may be below 0, over 0..MaxScore.
func (pl *interPodAffinity) Normalize(_ *framework.CycleState, scores []int64, _ []*framework.NodeInfo) {
	lowest, highest := int64(math.MaxInt64), int64(math.MinInt64)
	for _, s := range scores {
		lowest, highest = min(lowest, s), max(highest, s)
	}
	for i, s := range scores {
		scores[i] = 0
		if highest > lowest {
			scores[i] = int64(float64(framework.MaxScore) * (float64(s-lowest) / float64(highest-lowest)))
		}
	}
}

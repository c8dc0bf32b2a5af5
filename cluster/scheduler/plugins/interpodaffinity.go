package plugins

import (
	"context"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/sets"
	corelisters "k8s.io/client-go/listers/core/v1"

	"github.com/coracle-project/coracle/cluster/scheduler/framework"
)

// interPodAffinity brings pods to where certain other pods are, and keeps them away from there. It
// works both ways: a pod on a node can keep new ones away from it. What is required is in this
// file, what is preferred in interpodaffinityscore.go, what may help in interpodaffinityhints.go.
type interPodAffinity struct {
	handle     *framework.Handle
	namespaces corelisters.NamespaceLister
	// hardWeight is what a required affinity of a pod on a node to the new one counts.
	// ignorePreferred has preferences of pods on nodes not count for a new one without any.
	hardWeight      int64
	ignorePreferred bool

	matching perNode[int32]        // pods that the new pod's terms match
	keeping  perNode[[]keyedScore] // terms of pods that match the new pod: required anti-affinity,
	drawing  perNode[[]keyedScore] // and all others
}

// newInterPodAffinity returns the plugin.
func newInterPodAffinity(h *framework.Handle, args Args) *interPodAffinity {
	return &interPodAffinity{
		handle: h, namespaces: h.Informers.Core().V1().Namespaces().Lister(),
		hardWeight: int64(valueOr(args.HardAffinityWeight, 1)), ignorePreferred: args.IgnorePreferred,
	}
}

var (
	errAffinity = framework.NewStatus(framework.Unresolvable, "InterPodAffinity", "node(s) didn't match pod affinity rules")
	errAnti     = framework.NewStatus(framework.Unschedulable, "InterPodAffinity", "node(s) didn't match pod anti-affinity rules")
	errExisting = framework.NewStatus(framework.Unschedulable, "InterPodAffinity", "node(s) didn't satisfy existing pods anti-affinity rules")

	affinityFilterKey = framework.NewKey[*affinityFilter]()
)

// keyedScore is what one topology key gets from the pods of one node.
type keyedScore struct {
	key   string
	score int64
}

// addScore adds to the score of key in list, which is short.
func addScore(list []keyedScore, key string, score int64) []keyedScore {
	for i := range list {
		if list[i].key == key {
			list[i].score += score
			return list
		}
	}
	return append(list, keyedScore{key, score})
}

// domains are numbers by topology key and value. A number of 0 has no place.
type domains map[string]map[string]int64

func (d domains) add(node *v1.Node, key string, n int64) {
	if n == 0 {
		return
	}
	value, ok := node.Labels[key]
	if !ok {
		return
	}
	values := d[key]
	if values == nil {
		values = make(map[string]int64)
		d[key] = values
	}
	if values[value] += n; values[value] == 0 {
		if delete(values, value); len(values) == 0 {
			delete(d, key)
		}
	}
}

func (d domains) at(node *v1.Node, key string) int64 { return d[key][node.Labels[key]] }

func (d domains) clone() domains {
	c := make(domains, len(d))
	for key, values := range d {
		c[key] = make(map[string]int64, len(values))
		for value, n := range values {
			c[key][value] = n
		}
	}
	return c
}

// affinityFilter is what Filter needs of a pod.
type affinityFilter struct {
	affinity, anti []framework.Term // the pod's, resolved
	namespace      labels.Set       // labels of the pod's namespace

	near  domains // pods that match all of the pod's affinity terms
	avoid domains // pods that match one of its anti-affinity terms
	keep  domains // anti-affinity terms of pods that match it
}

// Clone is for what-ifs.
func (s *affinityFilter) Clone() any {
	c := *s
	c.near, c.avoid, c.keep = s.near.clone(), s.avoid.clone(), s.keep.clone()
	return &c
}

func (*interPodAffinity) Name() string { return "InterPodAffinity" }

func (pl *interPodAffinity) resolve(terms []framework.Term) ([]framework.Term, error) {
	resolved := make([]framework.Term, len(terms))
	for i, t := range terms {
		var err error
		if resolved[i], err = t.Resolve(pl.namespaces.List); err != nil {
			return nil, err
		}
	}
	return resolved, nil
}

// namespaceLabels returns the labels of a namespace; none if it is not known.
func (pl *interPodAffinity) namespaceLabels(name string) labels.Set {
	if ns, err := pl.namespaces.Get(name); err == nil {
		return ns.Labels
	}
	return nil
}

// identity says all of pod that other pods' terms look at.
func identity(pod *v1.Pod, namespace labels.Set) string {
	return pod.Namespace + "/" + labels.Set(pod.Labels).String() + "/" + namespace.String()
}

// PreFilter counts the pods, and terms of pods, in each domain that concern the pod.
func (pl *interPodAffinity) PreFilter(_ context.Context, state *framework.CycleState,
	pod *framework.PodInfo,
) (sets.Set[string], *framework.Status) {
	p := pod.Pod()
	if len(pod.RequiredAffinity) == 0 && len(pod.RequiredAntiAffinity) == 0 && pod.Err == nil &&
		len(state.Nodes.WithRequiredAntiAffinity) == 0 {
		return nil, framework.Skipped
	}
	if pod.Err != nil {
		return nil, framework.NewStatus(framework.Unresolvable, pl.Name(), "parsing pod: "+pod.Err.Error())
	}
	s := &affinityFilter{near: make(domains), avoid: make(domains), keep: make(domains), namespace: pl.namespaceLabels(p.Namespace)}
	var err error
	if s.affinity, err = pl.resolve(pod.RequiredAffinity); err == nil {
		s.anti, err = pl.resolve(pod.RequiredAntiAffinity)
	}
	if err != nil {
		return nil, framework.Errored(pl.Name(), err)
	}
	pl.countKeeping(s, p, state.Nodes)
	if len(s.affinity) > 0 {
		matches := pl.matches(s.affinity, state.Nodes)
		for _, n := range state.Nodes.Nodes {
			for i := range s.affinity {
				s.near.add(n.Node(), s.affinity[i].TopologyKey, int64(matches[n.Slot]))
			}
		}
	}
	for i := range s.anti {
		matches := pl.matches(s.anti[i:i+1], state.Nodes)
		for _, n := range state.Nodes.Nodes {
			s.avoid.add(n.Node(), s.anti[i].TopologyKey, int64(matches[n.Slot]))
		}
	}
	if len(s.keep) == 0 && len(s.affinity) == 0 && len(s.anti) == 0 {
		return nil, framework.Skipped
	}
	affinityFilterKey.Write(state, s)
	return nil, nil
}

// matches returns by slot how many pods all of terms match, which are resolved.
func (pl *interPodAffinity) matches(terms []framework.Term, nodes *framework.Snapshot) []int32 {
	var key strings.Builder
	for i := range terms {
		key.WriteString(terms[i].Identity())
		key.WriteByte(';')
	}
	match := func(p *framework.PodInfo) bool { return matchesAll(terms, p.Pod()) }
	return pl.matching.of(key.String(), nodes, pl.handle.Parallel, func(n *framework.NodeInfo) int32 {
		return count(n.Pods, match)
	})
}

// matchesAll says whether all of terms, which are resolved, match pod. No terms match none.
func matchesAll(terms []framework.Term, pod *v1.Pod) bool {
	for i := range terms {
		if !terms[i].Matches(pod, nil) {
			return false
		}
	}
	return len(terms) > 0
}

// countKeeping counts in s the anti-affinity terms of pods on nodes that match the new pod.
func (pl *interPodAffinity) countKeeping(s *affinityFilter, pod *v1.Pod, nodes *framework.Snapshot) {
	if len(nodes.WithRequiredAntiAffinity) == 0 {
		return
	}
	scores := pl.keeping.of(identity(pod, s.namespace), nodes, pl.handle.Parallel, func(n *framework.NodeInfo) []keyedScore {
		var list []keyedScore
		for _, p := range n.PodsWithRequiredAntiAffinity {
			for i := range p.RequiredAntiAffinity {
				if t := &p.RequiredAntiAffinity[i]; t.Matches(pod, s.namespace) {
					list = addScore(list, t.TopologyKey, 1)
				}
			}
		}
		return list
	})
	for _, i := range nodes.WithRequiredAntiAffinity {
		n := nodes.Nodes[i]
		for _, ks := range scores[n.Slot] {
			s.keep.add(n.Node(), ks.key, ks.score)
		}
	}
}

func (pl *interPodAffinity) AddPod(state *framework.CycleState, pod, added *framework.PodInfo, node *framework.NodeInfo) *framework.Status {
	affinityFilterKey.Read(state).count(pod.Pod(), added, node.Node(), 1)
	return nil
}

func (pl *interPodAffinity) RemovePod(state *framework.CycleState, pod, removed *framework.PodInfo,
	node *framework.NodeInfo,
) *framework.Status {
	affinityFilterKey.Read(state).count(pod.Pod(), removed, node.Node(), -1)
	return nil
}

func (s *affinityFilter) count(pod *v1.Pod, other *framework.PodInfo, node *v1.Node, by int64) {
	o := other.Pod()
	for i := range other.RequiredAntiAffinity {
		if t := &other.RequiredAntiAffinity[i]; t.Matches(pod, s.namespace) {
			s.keep.add(node, t.TopologyKey, by)
		}
	}
	if matchesAll(s.affinity, o) {
		for i := range s.affinity {
			s.near.add(node, s.affinity[i].TopologyKey, by)
		}
	}
	for i := range s.anti {
		if s.anti[i].Matches(o, nil) {
			s.avoid.add(node, s.anti[i].TopologyKey, by)
		}
	}
}

func (pl *interPodAffinity) Filter(state *framework.CycleState, pod *framework.PodInfo, info *framework.NodeInfo) *framework.Status {
	s, node := affinityFilterKey.Read(state), info.Node()
	near := true
	for i := range s.affinity {
		key := s.affinity[i].TopologyKey
		if _, ok := node.Labels[key]; !ok {
			return errAffinity
		}
		near = near && s.near.at(node, key) > 0
	}
	// The first of a series of pods that want to be near each other may go anywhere.
	if !near && !(len(s.near) == 0 && matchesAll(s.affinity, pod.Pod())) {
		return errAffinity
	}
	for i := range s.anti {
		if s.avoid.at(node, s.anti[i].TopologyKey) > 0 {
			return errAnti
		}
	}
	for key, values := range s.keep {
		if value, ok := node.Labels[key]; ok && values[value] > 0 {
			return errExisting
		}
	}
	return nil
}

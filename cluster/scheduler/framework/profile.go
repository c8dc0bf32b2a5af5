package framework

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/util/sets"
)

// Enabled is a plugin of a profile. Its scores are multiplied by Weight.
type Enabled struct {
	Plugin
	Weight int64
}

// Profile is a set of plugins under the name that pods choose it by (spec.schedulerName).
type Profile struct {
	Name      string
	QueueSort QueueSort
	// PreEnqueues and Enqueuers are for the queue.
	PreEnqueues []PreEnqueue
	Enqueuers   []Enqueuer

	preFilters  []PreFilter
	filters     []Filter
	changers    []PodChanger
	postFilters []PostFilter
	preScores   []PreScore
	scores      []weighted
	reserves    []Reserve
	permits     []Permit
	preBinds    []PreBind
	binds       []Bind
	postBinds   []PostBind

	// total and single are where Score works; it is never called twice at a time.
	total, single []int64
}

type weighted struct {
	Score
	normalizer Normalizer // nil if the plugin is none
	weight     int64
}

// NewProfile returns the profile of plugins, in that order. It fails when two have the same name,
// or when not exactly one sorts the queue and at least one binds.
func NewProfile(name string, plugins ...Enabled) (*Profile, error) {
	p := &Profile{Name: name}
	names := sets.New[string]()
	for _, e := range plugins {
		if names.Has(e.Name()) {
			return nil, fmt.Errorf("profile %s: plugin %s is enabled twice", name, e.Name())
		}
		names.Insert(e.Name())
		if s, ok := e.Plugin.(QueueSort); ok {
			if p.QueueSort != nil {
				return nil, fmt.Errorf("profile %s: plugins %s and %s both sort the queue", name, p.QueueSort.Name(), s.Name())
			}
			p.QueueSort = s
		}
		add(&p.PreEnqueues, e.Plugin)
		add(&p.Enqueuers, e.Plugin)
		add(&p.preFilters, e.Plugin)
		add(&p.filters, e.Plugin)
		add(&p.changers, e.Plugin)
		add(&p.postFilters, e.Plugin)
		add(&p.preScores, e.Plugin)
		add(&p.reserves, e.Plugin)
		add(&p.permits, e.Plugin)
		add(&p.preBinds, e.Plugin)
		add(&p.binds, e.Plugin)
		add(&p.postBinds, e.Plugin)
		if s, ok := e.Plugin.(Score); ok && e.Weight > 0 {
			n, _ := s.(Normalizer)
			p.scores = append(p.scores, weighted{s, n, e.Weight})
		}
	}
	if p.QueueSort == nil {
		return nil, fmt.Errorf("profile %s: no plugin sorts the queue", name)
	}
	if len(p.binds) == 0 {
		return nil, fmt.Errorf("profile %s: no plugin binds", name)
	}
	return p, nil
}

func add[T Plugin](list *[]T, p Plugin) {
	if t, ok := p.(T); ok {
		*list = append(*list, t)
	}
}

// PreFilter runs the PreFilter plugins. It returns the only nodes that can fit, or nil if all may,
// and the plugins that said so.
func (p *Profile) PreFilter(ctx context.Context, state *CycleState, pod *PodInfo) (names sets.Set[string], narrowed []string, status *Status) {
	skip := sets.Set[string]{}
	for _, pl := range p.preFilters {
		only, s := pl.PreFilter(ctx, state, pod)
		switch s.Code() {
		case Success:
		case Skip:
			skip.Insert(pl.Name())
			continue
		case Unresolvable:
			return nil, nil, s // preemption, which needs the other plugins' results, cannot help
		case Unschedulable:
			status = s
			continue
		default:
			return nil, nil, s.wrap("PreFilter", pl)
		}
		if only == nil {
			continue
		}
		narrowed = append(narrowed, pl.Name())
		slices.Sort(narrowed)
		if names == nil {
			names = only
		} else {
			names = names.Intersection(only)
		}
		if len(names) == 0 {
			msg := fmt.Sprintf("node(s) didn't satisfy plugin(s) %v simultaneously", narrowed)
			if len(narrowed) == 1 {
				msg = fmt.Sprintf("node(s) didn't satisfy plugin %v", narrowed[0])
			}
			return names, narrowed, NewStatus(Unresolvable, "", msg)
		}
	}
	state.filters = without(p.filters, skip)
	state.changers = without(p.changers, skip)
	return names, narrowed, status
}

// without returns the plugins of list that are not in skip.
func without[T Plugin](list []T, skip sets.Set[string]) []T {
	if len(skip) == 0 {
		return list
	}
	left := make([]T, 0, len(list))
	for _, pl := range list {
		if !skip.Has(pl.Name()) {
			left = append(left, pl)
		}
	}
	return left
}

// Filter says whether pod fits node, also when the pods of at least its priority that are
// nominated to the node come there first.
func (p *Profile) Filter(state *CycleState, pod *PodInfo, node *NodeInfo) *Status {
	if len(state.Nominated) > 0 {
		withPods, changed, err := p.addNominated(state, pod, node)
		if err != nil {
			return err
		}
		if changed != nil {
			if s := p.filter(withPods, pod, changed); !s.OK() {
				return s
			}
			// Affinity to a nominated pod must not count: it may end up elsewhere.
		}
	}
	return p.filter(state, pod, node)
}

func (p *Profile) filter(state *CycleState, pod *PodInfo, node *NodeInfo) *Status {
	for _, pl := range state.filters {
		if s := pl.Filter(state, pod, node); s != nil && s.code != Success {
			if s.Rejected() {
				return s
			}
			return s.wrap("Filter", pl)
		}
	}
	return nil
}

// addNominated returns state and node as they are with the pods nominated to node that pod has to
// give way to; a nil node if there are none.
func (p *Profile) addNominated(state *CycleState, pod *PodInfo, node *NodeInfo) (*CycleState, *NodeInfo, *Status) {
	var changed *NodeInfo
	var with *CycleState
	for _, n := range state.Nominated[node.Node().Name] {
		if n.Priority() < pod.Priority() || n.Pod().UID == pod.Pod().UID {
			continue
		}
		if changed == nil {
			changed, with = node.Clone(), state.Clone()
		}
		changed.Add(n)
		if s := p.AddPod(with, pod, n, changed); !s.OK() {
			return nil, nil, s
		}
	}
	return with, changed, nil
}

// AddPod tells the PodChangers that added is now on node, which has it already.
func (p *Profile) AddPod(state *CycleState, pod, added *PodInfo, node *NodeInfo) *Status {
	for _, pl := range state.changers {
		if s := pl.AddPod(state, pod, added, node); !s.OK() {
			return s.wrap("AddPod of PreFilter", pl)
		}
	}
	return nil
}

// RemovePod tells the PodChangers that removed is no more on node, which has it not any more.
func (p *Profile) RemovePod(state *CycleState, pod, removed *PodInfo, node *NodeInfo) *Status {
	for _, pl := range state.changers {
		if s := pl.RemovePod(state, pod, removed, node); !s.OK() {
			return s.wrap("RemovePod of PreFilter", pl)
		}
	}
	return nil
}

// PostFilter runs the PostFilter plugins until one succeeds. It returns the nomination, as
// PostFilter of a plugin does, and what came of it.
func (p *Profile) PostFilter(ctx context.Context, state *CycleState, pod *PodInfo, rejected *Rejections) (nomination *string, status *Status) {
	var reasons []string
	for _, pl := range p.postFilters {
		n, s := pl.PostFilter(ctx, state, pod, rejected)
		switch {
		case s.OK(), s.Code() == Unresolvable:
			return n, s
		case !s.Rejected():
			return nil, s
		}
		if n != nil {
			nomination = n
		}
		reasons = append(reasons, s.Reasons()...)
	}
	return nomination, NewStatus(Unschedulable, "", reasons...)
}

// HasPostFilters says whether there is a PostFilter plugin.
func (p *Profile) HasPostFilters() bool { return len(p.postFilters) > 0 }

// scoreGrain is for how many nodes scoring is worth another goroutine.
const scoreGrain = 128

// Score returns the weighted sum of each node's scores, in the order of nodes. What it returns is
// valid until it is called again.
func (p *Profile) Score(ctx context.Context, state *CycleState, pod *PodInfo, nodes []*NodeInfo, parallel Parallel) ([]int64, *Status) {
	skip := sets.Set[string]{}
	for _, pl := range p.preScores {
		s := pl.PreScore(ctx, state, pod, nodes)
		switch s.Code() {
		case Success:
		case Skip:
			skip.Insert(pl.Name())
		default:
			return nil, s.wrap("PreScore", pl)
		}
	}
	plugins := without(p.scores, skip)
	p.total = slices.Grow(p.total[:0], len(nodes))[:len(nodes)]
	p.single = slices.Grow(p.single[:0], len(nodes)*len(plugins))[:len(nodes)*len(plugins)]
	clear(p.total)

	failed := make([]*Status, len(plugins))
	parallel.Do(len(nodes), scoreGrain, func(from, to int) {
		for i, pl := range plugins {
			scores := p.single[i*len(nodes) : (i+1)*len(nodes)]
			for n := from; n < to; n++ {
				score, s := pl.Score.Score(state, pod, nodes[n])
				if s != nil && s.code != Success {
					failed[i] = s
				}
				scores[n] = score
			}
		}
	})
	for i, pl := range plugins {
		if failed[i] != nil {
			return nil, failed[i].wrap("Score", pl)
		}
		scores := p.single[i*len(nodes) : (i+1)*len(nodes)]
		if pl.normalizer != nil {
			pl.normalizer.Normalize(state, scores, nodes)
		}
		for n, score := range scores {
			if score < 0 || score > MaxScore {
				return nil, Errored(pl.Name(), fmt.Errorf("plugin %q returns an invalid score %v, it should in the range of [0, %v] after normalizing", pl.Name(), score, MaxScore))
			}
			p.total[n] += score * pl.weight
		}
	}
	return p.total, nil
}

// Rejectors returns the names of the plugins that can reject pods.
func (p *Profile) Rejectors() []string {
	names := sets.New[string]()
	collect(names, p.PreEnqueues)
	collect(names, p.preFilters)
	collect(names, p.filters)
	collect(names, p.reserves)
	collect(names, p.permits)
	return sets.List(names)
}

func collect[T Plugin](names sets.Set[string], list []T) {
	for _, pl := range list {
		names.Insert(pl.Name())
	}
}

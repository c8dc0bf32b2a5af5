package framework

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/util/sets"
)

// Point is a point at which plugins are asked, by the name that configurations have for it.
type Point string

// The points, in the order in which a pod comes to them.
const (
	AtPreEnqueue Point = "preEnqueue"
	AtQueueSort  Point = "queueSort"
	AtPreFilter  Point = "preFilter"
	AtFilter     Point = "filter"
	AtPostFilter Point = "postFilter"
	AtPreScore   Point = "preScore"
	AtScore      Point = "score"
	AtReserve    Point = "reserve"
	AtPermit     Point = "permit"
	AtPreBind    Point = "preBind"
	AtBind       Point = "bind"
	AtPostBind   Point = "postBind"
)

// Enabled is a plugin of a profile. Its scores are multiplied by Weight.
type Enabled struct {
	Plugin
	Weight int64
	// At, if not empty, is the only point at which it is asked. The same plugin can be enabled at
	// several.
	At Point
}

// Implements says whether the plugin has anything to say at a point.
func Implements(p Plugin, at Point) (yes bool) {
	switch at {
	case AtPreEnqueue:
		_, yes = p.(PreEnqueue)
	case AtQueueSort:
		_, yes = p.(QueueSort)
	case AtPreFilter:
		_, yes = p.(PreFilter)
	case AtFilter:
		_, yes = p.(Filter)
	case AtPostFilter:
		_, yes = p.(PostFilter)
	case AtPreScore:
		_, yes = p.(PreScore)
	case AtScore:
		_, yes = p.(Score)
	case AtReserve:
		_, yes = p.(Reserve)
	case AtPermit:
		_, yes = p.(Permit)
	case AtPreBind:
		_, yes = p.(PreBind)
	case AtBind:
		_, yes = p.(Bind)
	case AtPostBind:
		_, yes = p.(PostBind)
	}
	return yes
}

// Profile is a set of plugins under the name that pods choose it by (spec.schedulerName).
type Profile struct {
	Name      string
	Log       *slog.Logger // the scheduler's; discards by default
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

	// total, single and columns are where Score works, shape where shapes are made. PreFilter and
	// Score are never called twice at a time.
	total, single []int64
	shape         []byte
	columns       []int
	// filtered and scored are what plugins said for earlier pods.
	filtered, scored []*table
}

type weighted struct {
	Score
	normalizer Normalizer // nil if the plugin does not normalize
	weight     int64
}

// NewProfile returns the profile of plugins, in that order. It fails when one is enabled twice at a
// point or at one where it has nothing to say, or when not exactly one sorts the queue and at least
// one binds.
func NewProfile(name string, plugins ...Enabled) (*Profile, error) {
	p := &Profile{Name: name, Log: slog.New(slog.DiscardHandler)}
	enabled := make(map[string]Plugin)
	at := sets.New[string]()
	for _, e := range plugins {
		other, known := enabled[e.Name()]
		place := e.Name() + " " + string(e.At)
		if at.Has(place) || at.Has(e.Name()+" ") || known && (e.At == "" || other != e.Plugin) {
			return nil, fmt.Errorf("profile %s: plugin %s is enabled twice", name, e.Name())
		}
		at.Insert(place)
		if e.At != "" && !Implements(e.Plugin, e.At) {
			return nil, fmt.Errorf("profile %s: plugin %s has nothing to say at point %s", name, e.Name(), e.At)
		}
		enabled[e.Name()] = e.Plugin
		if s, ok := e.Plugin.(QueueSort); ok && (e.At == "" || e.At == AtQueueSort) {
			if p.QueueSort != nil {
				return nil, fmt.Errorf("profile %s: plugins %s and %s both sort the queue", name, p.QueueSort.Name(), s.Name())
			}
			p.QueueSort = s
		}
		add(&p.PreEnqueues, e, AtPreEnqueue)
		add(&p.preFilters, e, AtPreFilter)
		add(&p.filters, e, AtFilter)
		add(&p.changers, e, AtPreFilter)
		add(&p.postFilters, e, AtPostFilter)
		add(&p.preScores, e, AtPreScore)
		add(&p.reserves, e, AtReserve)
		add(&p.permits, e, AtPermit)
		add(&p.preBinds, e, AtPreBind)
		add(&p.binds, e, AtBind)
		add(&p.postBinds, e, AtPostBind)
		if !known {
			add(&p.Enqueuers, e, e.At)
		}
		if s, ok := e.Plugin.(Score); ok && e.Weight > 0 && (e.At == "" || e.At == AtScore) {
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

// add adds e's plugin to those of a point if it is enabled there.
func add[T Plugin](list *[]T, e Enabled, at Point) {
	if t, ok := e.Plugin.(T); ok && (e.At == "" || e.At == at) {
		*list = append(*list, t)
	}
}

// PreFilter runs the PreFilter plugins. It returns the only nodes that can fit, or nil if all may,
// and the plugins that said so.
func (p *Profile) PreFilter(ctx context.Context, state *CycleState,
	pod *PodInfo,
) (names sets.Set[string], narrowed []string, status *Status) {
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
	state.verdicts = p.verdicts(state, pod)
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
			return Errored(pl.Name(), fmt.Errorf("running %q filter plugin: %w", pl.Name(), s.Err()))
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
func (p *Profile) PostFilter(ctx context.Context, state *CycleState, pod *PodInfo,
	rejected *Rejections,
) (nomination *string, status *Status) {
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
// valid until it is called again. places says where each node is in state.Nodes, nil that this is
// not known.
func (p *Profile) Score(ctx context.Context, state *CycleState, pod *PodInfo, nodes []*NodeInfo, places []int,
	parallel Parallel,
) ([]int64, *Status) {
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

	work := scoring{
		state: state, pod: pod, nodes: nodes, places: places, plugins: plugins, single: p.single,
		failed: make([]atomic.Pointer[Status], len(plugins)),
	}
	work.recall(p)
	parallel.Do(len(nodes), scoreGrain, func(from, to int) {
		for n := from; n < to; n++ {
			work.score(n)
		}
	})
	for i, pl := range plugins {
		if failed := work.failed[i].Load(); failed != nil {
			return nil, failed.wrap("Score", pl)
		}
		scores := p.single[i*len(nodes) : (i+1)*len(nodes)]
		if pl.normalizer != nil {
			pl.normalizer.Normalize(state, scores, nodes)
		}
		for n, score := range scores {
			if score < 0 || score > MaxScore {
				return nil, Errored(pl.Name(), fmt.Errorf("plugin %q returns an invalid score %v, it should in the range of [0, %v] after normalizing",
					pl.Name(), score, MaxScore))
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

// Package upstream runs plugins of upstream's scheduler in ours: those that pods with volumes of
// claims and pods with devices need (VolumeBinding, NodeVolumeLimits, DynamicResources). What such
// a pod may do is theirs to say; what every pod pays for is ours.
//
// A pod that needs none of them pays a look at its volumes. Nothing is made before the first pod
// that does: not the plugin, nor the informers of what it reads. That pod, and those that come
// meanwhile, wait in the queue until these have synced (gate.go). An API server that does not serve
// what a plugin reads keeps only such pods waiting, and they say why.
//
// Upstream's plugins see our nodes, pods and cycles through views (views.go) that have the methods
// these plugins use and no others. Any other method panics, which fails the one pod; tests that run
// each plugin through all its points would notice after an upgrade.
package upstream

import (
	"context"
	"fmt"
	"sync/atomic"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/coracle-project/coracle/cluster/scheduler/framework"
)

// imported is what all upstream's plugins have in common here: the points at which our framework
// asks. A type that embeds it says which of them it has.
type imported struct {
	name  string
	needs func(*v1.Pod) bool
	gate  *gate
	make  func(context.Context) (fwk.Plugin, error)

	current atomic.Pointer[instance]
}

// instance is upstream's plugin, and the events that it asks for.
type instance struct {
	fwk.Plugin
	hints []fwk.ClusterEventWithHint
}

// Name is upstream's.
func (p *imported) Name() string { return p.name }

// made returns upstream's plugin. It is made in the cycle of the first pod that comes through the
// gate.
func (p *imported) made(ctx context.Context, pod *v1.Pod) (*instance, error) {
	if made := p.current.Load(); made != nil {
		return made, nil
	}
	if err := p.gate.closed(pod); err != nil {
		return nil, err
	}
	plugin, err := p.make(ctx)
	if err != nil {
		return nil, fmt.Errorf("make upstream's plugin %s: %w", p.name, err)
	}
	made := &instance{Plugin: plugin}
	if made.hints, err = plugin.(fwk.EnqueueExtensions).EventsToRegister(ctx); err != nil {
		return nil, fmt.Errorf("events of upstream's plugin %s: %w", p.name, err)
	}
	p.current.Store(made)
	return made, nil
}

// preEnqueue keeps pods that need the plugin waiting until what it reads is there.
func (p *imported) preEnqueue(pod *v1.Pod) *framework.Status {
	if !p.needs(pod) {
		return nil
	}
	return p.gate.admit(p.name, pod)
}

func (p *imported) preFilter(ctx context.Context, state *framework.CycleState,
	pod *framework.PodInfo,
) (sets.Set[string], *framework.Status) {
	if !p.needs(pod.Pod()) {
		return nil, framework.Skipped
	}
	made, err := p.made(ctx, pod.Pod())
	if err != nil {
		return nil, framework.NewStatus(framework.Unresolvable, p.name, err.Error())
	}
	result, s := made.Plugin.(fwk.PreFilterPlugin).PreFilter(ctx, begin(ctx, state), pod.Pod(), nil)
	if result.AllNodes() {
		return nil, p.status(s)
	}
	return result.NodeNames, p.status(s)
}

func (p *imported) filter(state *framework.CycleState, pod *framework.PodInfo, node *framework.NodeInfo) *framework.Status {
	c := cycles.Read(state)
	return p.status(p.current.Load().Plugin.(fwk.FilterPlugin).Filter(c.ctx, c.state, pod.Pod(), nodeView{node: node}))
}

func (p *imported) reserve(ctx context.Context, state *framework.CycleState, pod *framework.PodInfo, node string) *framework.Status {
	c := cycles.Read(state)
	if c == nil || !p.needs(pod.Pod()) {
		return nil
	}
	return p.status(p.current.Load().Plugin.(fwk.ReservePlugin).Reserve(ctx, c.state, pod.Pod(), node))
}

func (p *imported) unreserve(ctx context.Context, state *framework.CycleState, pod *framework.PodInfo, node string) {
	if c := cycles.Read(state); c != nil && p.needs(pod.Pod()) {
		p.current.Load().Plugin.(fwk.ReservePlugin).Unreserve(ctx, c.state, pod.Pod(), node)
	}
}

func (p *imported) prepares(state *framework.CycleState, pod *framework.PodInfo, node string) bool {
	c := cycles.Read(state)
	if c == nil || !p.needs(pod.Pod()) {
		return false
	}
	_, s := p.current.Load().Plugin.(fwk.PreBindPlugin).PreBindPreFlight(c.ctx, c.state, pod.Pod(), node)
	return !s.IsSkip()
}

func (p *imported) preBind(ctx context.Context, state *framework.CycleState, pod *framework.PodInfo, node string) *framework.Status {
	return p.status(p.current.Load().Plugin.(fwk.PreBindPlugin).PreBind(ctx, cycles.Read(state).state, pod.Pod(), node))
}

// events returns hints for events. Whether one that happened may help a pod is asked of the
// function that upstream's plugin has registered at the same place of its list; a test compares the
// lists.
func (p *imported) events(list ...framework.Event) []framework.EventHint {
	hints := make([]framework.EventHint, len(list))
	for i, e := range list {
		hints[i] = framework.EventHint{Event: e, Hint: func(pod *framework.PodInfo, before, after any) bool {
			return p.helps(i, pod, before, after)
		}}
	}
	return hints
}

func (p *imported) helps(i int, pod *framework.PodInfo, before, after any) bool {
	made := p.current.Load()
	if made == nil || i >= len(made.hints) || made.hints[i].QueueingHintFn == nil {
		return true
	}
	if gone, ok := before.(toolscache.DeletedFinalStateUnknown); ok {
		before = gone.Obj
	}
	hint, err := made.hints[i].QueueingHintFn(klog.Background(), pod.Pod(), before, after)
	return err != nil || hint == fwk.Queue
}

// status is upstream's answer as ours.
func (p *imported) status(s *fwk.Status) *framework.Status {
	switch s.Code() {
	case fwk.Success:
		return nil
	case fwk.Skip:
		return framework.Skipped
	case fwk.Unschedulable:
		return framework.NewStatus(framework.Unschedulable, p.name, s.Reasons()...)
	case fwk.UnschedulableAndUnresolvable, fwk.Pending:
		return framework.NewStatus(framework.Unresolvable, p.name, s.Reasons()...)
	}
	return framework.Errored(p.name, s.AsError())
}

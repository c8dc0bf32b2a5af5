// Package preemption makes room for a pod that fits no node, by removing pods of lower priority.
//
// For each node on which removing pods may help it works out, on copies, the smallest set of pods
// to remove (victims.go), and picks the node where that hurts least (pick.go). The pod is nominated
// to that node, so that no other of at most its priority takes the room, and the victims are
// deleted alongside the next cycles (evict.go). Meanwhile the pod is kept out of the queue. It is
// then scheduled like any other, first tried on the node that it is nominated to: if something
// better has come up meanwhile, nothing is lost.
package preemption

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	corelisters "k8s.io/client-go/listers/core/v1"
	policylisters "k8s.io/client-go/listers/policy/v1"
	"k8s.io/utils/ptr"

	"github.com/coracle-project/coracle/cluster/scheduler/framework"
)

const name = "DefaultPreemption"

// At least a hundred nodes are tried, and a tenth of those that come into question, by default.
const (
	minCandidates        = 100
	minCandidatesPercent = 10
)

// Args say on how many nodes making room is tried: at least so many, and so many in a hundred of
// those that come into question. Those that are nil are 100 and 10.
type Args struct{ Candidates, Percent *int32 }

// Plugin is the PostFilter plugin.
type Plugin struct {
	handle *framework.Handle
	// atLeast nodes are tried, and percent of those that come into question.
	atLeast, percent int
	pods             corelisters.PodLister
	pdbs             policylisters.PodDisruptionBudgetLister
	evictions
}

// New returns the plugin.
func New(h *framework.Handle, args Args) *Plugin {
	return &Plugin{
		atLeast: int(ptr.Deref(args.Candidates, minCandidates)), percent: int(ptr.Deref(args.Percent, minCandidatesPercent)),
		handle: h, pods: h.Informers.Core().V1().Pods().Lister(),
		pdbs:      h.Informers.Policy().V1().PodDisruptionBudgets().Lister(),
		evictions: newEvictions(),
	}
}

// Name is DefaultPreemption, as upstream's.
func (*Plugin) Name() string { return name }

// PostFilter nominates the pod to the node where making room hurts least and starts to make it.
func (pl *Plugin) PostFilter(ctx context.Context, state *framework.CycleState, pod *framework.PodInfo,
	rejected *framework.Rejections,
) (*string, *framework.Status) {
	p, err := pl.pods.Pods(pod.Pod().Namespace).Get(pod.Pod().Name)
	if err != nil {
		return nil, failed(err)
	}
	if why := pl.ineligible(p, state.Nodes, rejected); why != "" {
		return nil, unschedulable(why)
	}
	candidates, statuses, err := pl.candidates(ctx, state, pod, rejected)
	if err != nil && len(candidates) == 0 {
		return nil, failed(err)
	}
	if len(candidates) == 0 {
		none := ""
		statuses.Others = notHelpful
		return &none, unschedulable((&framework.FitError{Nodes: len(state.Nodes.Nodes), Rejections: statuses}).Error())
	}
	if candidates, err = pl.extended(ctx, p, state.Nodes, candidates); err != nil {
		return nil, failed(err)
	}
	if len(candidates) == 0 {
		none := ""
		return &none, unschedulable("extenders leave no node on which room can be made.")
	}
	best := pick(candidates)
	pl.evict(p, best)
	return &best.node, nil
}

var (
	notHelpful = framework.NewStatus(framework.Unresolvable, name, "Preemption is not helpful for scheduling")
	noVictims  = framework.NewStatus(framework.Unresolvable, name, "No preemption victims found for incoming pod")
)

func failed(err error) *framework.Status {
	return framework.Errored(name, fmt.Errorf("preemption: %w", err))
}

func unschedulable(why string) *framework.Status {
	return framework.NewStatus(framework.Unschedulable, name, "preemption: "+why)
}

// ineligible says why pod may not remove others now; nothing if it may.
func (pl *Plugin) ineligible(pod *v1.Pod, nodes *framework.Snapshot, rejected *framework.Rejections) string {
	if pod.Spec.PreemptionPolicy != nil && *pod.Spec.PreemptionPolicy == v1.PreemptNever {
		return "not eligible due to preemptionPolicy=Never."
	}
	nominated := pod.Status.NominatedNodeName
	if nominated == "" || rejected.Get(nominated).Code() == framework.Unresolvable {
		return "" // that node is lost anyway
	}
	if node := nodes.Get(nominated); node != nil {
		for _, victim := range node.Pods {
			if lower(victim, pod) && beingEvicted(victim.Pod()) {
				return "not eligible due to a terminating pod on the nominated node."
			}
		}
	}
	return ""
}

// beingEvicted says whether pod terminates because the scheduler removed it.
func beingEvicted(pod *v1.Pod) bool {
	if pod.DeletionTimestamp == nil {
		return false
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == v1.DisruptionTarget {
			return c.Status == v1.ConditionTrue && c.Reason == v1.PodReasonPreemptionByScheduler
		}
	}
	return false
}

// candidates returns nodes on which room can be made, those without broken disruption budgets
// first, and why it cannot on the others that were tried.
func (pl *Plugin) candidates(ctx context.Context, state *framework.CycleState, pod *framework.PodInfo,
	rejected *framework.Rejections,
) ([]candidate, *framework.Rejections, error) {
	statuses := framework.NewRejections(state.Nodes)
	nodes := rejected.Nodes(framework.Unschedulable)
	if len(nodes) == 0 {
		return nil, statuses, nil
	}
	budgets, err := pl.budgets()
	if err != nil {
		return nil, nil, err
	}
	want := min(max(len(nodes)*pl.percent/100, pl.atLeast, 1), len(nodes))
	// Start at different nodes, so that the first ones are not emptied one by one.
	offset := rand.IntN(len(nodes))

	var mu sync.Mutex
	var clean, violating []candidate
	var errs []error
	// Enough are enough once one of them breaks no budget.
	for from := 0; from < len(nodes) && (len(clean) == 0 || len(clean)+len(violating) < want) && ctx.Err() == nil; from += want {
		size := min(want, len(nodes)-from)
		pl.handle.Parallel.Do(size, 1, func(a, b int) {
			for i := a; i < b; i++ {
				node := nodes[(offset+from+i)%len(nodes)]
				c, status := pl.victims(state.Clone(), pod, node.Clone(), budgets)
				mu.Lock()
				switch {
				case status.OK() && c.violations == 0:
					clean = append(clean, c)
				case status.OK():
					violating = append(violating, c)
				default:
					statuses.Set(node, status)
					if !status.Rejected() {
						errs = append(errs, status.Err())
					}
				}
				mu.Unlock()
			}
		})
	}
	return append(clean, violating...), statuses, errors.Join(errs...)
}

// extended returns the candidates that extenders leave, with the victims that they choose.
func (pl *Plugin) extended(ctx context.Context, pod *v1.Pod, nodes *framework.Snapshot, candidates []candidate) ([]candidate, error) {
	if pl.handle.Preempt == nil {
		return candidates, nil
	}
	victims := make(map[string]framework.Victims, len(candidates))
	for _, c := range candidates {
		victims[c.node] = framework.Victims{Pods: c.victims, Violations: c.violations}
	}
	chosen, err := pl.handle.Preempt(ctx, pod, nodes, victims)
	if err != nil {
		return nil, err
	}
	now := metav1.NewTime(time.Now())
	var left []candidate
	for node, v := range chosen {
		c := candidate{node: node, victims: slices.Clone(v.Pods), violations: v.Violations}
		slices.SortStableFunc(c.victims, func(a, b *v1.Pod) int { return moreImportant(a, b, now) })
		left = append(left, c)
	}
	return left, nil
}

func (pl *Plugin) budgets() ([]*policyv1.PodDisruptionBudget, error) {
	return pl.pdbs.List(labels.Everything())
}

// PreEnqueue keeps a pod waiting while room is being made for it.
func (pl *Plugin) PreEnqueue(pod *v1.Pod) *framework.Status {
	if pl.evicting(pod.UID, pl.pods) {
		return framework.NewStatus(framework.Unresolvable, name, "waiting for the preemption for this pod to be finished")
	}
	return nil
}

// Events: pods that go are looked at for a pod that is kept waiting, but whether it may fit then is
// for the plugins to say that rejected it.
func (*Plugin) Events() []framework.EventHint {
	return []framework.EventHint{{
		Event: framework.Event{Kind: framework.Pod, Action: framework.Delete},
		Hint:  func(*framework.PodInfo, any, any) bool { return false },
	}}
}

// Package framework is what the scheduler and its plugins agree on: the points at which a plugin
// is asked, what it is told of pods and nodes, and how it answers.
//
// # One pod's way
//
// A pod that appears goes through PreEnqueue (may it be tried at all?) into the queue, which
// QueueSort orders. When it is popped, one scheduling cycle works on it alone:
//
//	PreFilter   once per pod: compute what Filter needs; may narrow the nodes, or reject the pod
//	Filter      once per pod and node, in parallel: does the pod fit?
//	PostFilter  only when no node fits: make room (preemption)
//	PreScore    once per pod, with the nodes that fit
//	Score       once per pod and node, in parallel; Normalize then brings the scores to 0..MaxScore
//	Reserve     the node is chosen and the pod assumed on it; undone by Unreserve
//	Permit      let the pod go on, reject it, or make it wait
//
// The rest runs alongside the next pod's cycle: PreBind, Bind (the first that does not Skip) and
// PostBind. A pod that is rejected waits until an Event comes that one of the plugins which
// rejected it asked for in Events, and whose Hint says that it may help.
//
// # What plugins may rely on
//
// A plugin implements any number of the interfaces below; they are asked in the order in which
// the profile lists the plugins. NodeInfo, PodInfo and Snapshot values are shared and never
// change while a cycle runs (PodInfo.Pod may be replaced by a newer version that is the same to
// scheduling). What a plugin computes in PreFilter or PreScore it keeps in the CycleState under a
// Key of its own. It answers with a Status; nil is success, and a rejection's reason is counted
// over the nodes in the message that users read.
package framework

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
)

// MaxScore is the highest score of a node after normalization; the lowest is 0.
const MaxScore int64 = 100

// Plugin is what all plugins have in common.
type Plugin interface {
	// Name is unique in a profile; it is how messages and the queue refer to the plugin.
	Name() string
}

// QueueSort orders the pods that wait to be tried. A profile has exactly one.
type QueueSort interface {
	Plugin
	// Less says whether a is to be tried before b.
	Less(a, b *QueuedPod) bool
}

// PreEnqueue says whether a pod may be tried at all. A pod that is rejected waits for an event
// that the plugin asked for.
type PreEnqueue interface {
	Plugin
	PreEnqueue(pod *v1.Pod) *Status
}

// Enqueuer says which events may help pods that the plugin rejected. A plugin that rejects pods
// without being an Enqueuer gets every event.
type Enqueuer interface {
	Plugin
	Events() []EventHint
}

// PreFilter looks at a pod before nodes are tried.
type PreFilter interface {
	Plugin
	// PreFilter returns the names of the only nodes that can fit, or nil when all may. Skip means
	// that the plugin's Filter has nothing to say of this pod and needs not be asked.
	PreFilter(ctx context.Context, state *CycleState, pod *PodInfo) (sets.Set[string], *Status)
}

// PodChanger is a PreFilter whose result depends on the pods on nodes. It is told when the
// scheduler asks what if a pod were added to, or removed from, a node.
type PodChanger interface {
	PreFilter
	AddPod(state *CycleState, pod, added *PodInfo, node *NodeInfo) *Status
	RemovePod(state *CycleState, pod, removed *PodInfo, node *NodeInfo) *Status
}

// Filter says whether a pod fits a node. It is called for several nodes at a time.
type Filter interface {
	Plugin
	Filter(state *CycleState, pod *PodInfo, node *NodeInfo) *Status
}

// PostFilter is asked when no node fits. The first that succeeds ends the round.
type PostFilter interface {
	Plugin
	// PostFilter returns which node the pod is to be nominated to: nil leaves the nomination as
	// it is, a pointer to "" takes it away.
	PostFilter(ctx context.Context, state *CycleState, pod *PodInfo, rejected *Rejections) (*string, *Status)
}

// PreScore looks at a pod and the nodes that fit before they are scored.
type PreScore interface {
	Plugin
	// PreScore may Skip, which means that the plugin's Score needs not be asked.
	PreScore(ctx context.Context, state *CycleState, pod *PodInfo, feasible []*NodeInfo) *Status
}

// Score ranks a node that fits. It is called for several nodes at a time. Without a Normalizer
// scores must be in 0..MaxScore.
type Score interface {
	Plugin
	Score(state *CycleState, pod *PodInfo, node *NodeInfo) (int64, *Status)
}

// Normalizer is a Score that needs all scores of a pod to bring them into 0..MaxScore.
type Normalizer interface {
	Score
	// Normalize changes scores in place; scores[i] is of nodes[i].
	Normalize(state *CycleState, scores []int64, nodes []*NodeInfo)
}

// Reserve is called when a pod is assumed on a node, and when that is undone.
type Reserve interface {
	Plugin
	Reserve(ctx context.Context, state *CycleState, pod *PodInfo, node string) *Status
	// Unreserve must be idempotent and may come without a Reserve.
	Unreserve(ctx context.Context, state *CycleState, pod *PodInfo, node string)
}

// Permit is the last that can hold a pod back: it answers nil, a rejection, or Wait with how long
// to wait at most for Handle.Waiting to say what becomes of the pod.
type Permit interface {
	Plugin
	Permit(ctx context.Context, state *CycleState, pod *PodInfo, node string) (time.Duration, *Status)
}

// PreBind prepares a node for a pod before it is bound. That may take minutes, and other pods are
// bound meanwhile; the context ends when the pod is deleted.
type PreBind interface {
	Plugin
	// Prepares says whether there is anything to do for the pod.
	Prepares(state *CycleState, pod *PodInfo, node string) bool
	PreBind(ctx context.Context, state *CycleState, pod *PodInfo, node string) *Status
}

// Bind binds a pod to a node, or answers Skip to leave it to the next.
type Bind interface {
	Plugin
	Bind(ctx context.Context, state *CycleState, pod *PodInfo, node string) *Status
}

// PostBind is called after a pod was bound.
type PostBind interface {
	Plugin
	PostBind(ctx context.Context, state *CycleState, pod *PodInfo, node string)
}

// Normalize brings scores, none below 0, from 0..their maximum to 0..MaxScore.
func Normalize(scores []int64) {
	var highest int64
	for _, s := range scores {
		highest = max(highest, s)
	}
	if highest == 0 {
		return
	}
	for i, s := range scores {
		scores[i] = MaxScore * s / highest
	}
}

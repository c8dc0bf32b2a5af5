package framework

import (
	"maps"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
)

// PodInfo is a pod with what scheduling needs of it worked out once. Everything but the pod
// itself is immutable; the pod may be replaced by a newer version with SetPod while others read.
type PodInfo struct {
	// Requests are the pod's requests; NonZeroMilliCPU and NonZeroMemory what it is counted with
	// where nodes are scored.
	Requests        Resource
	NonZeroMilliCPU int64
	NonZeroMemory   int64
	// Terms of inter-pod affinity, parsed. A term whose selector cannot be parsed is left out and
	// Err set.
	RequiredAffinity      []Term
	RequiredAntiAffinity  []Term
	PreferredAffinity     []WeightedTerm
	PreferredAntiAffinity []WeightedTerm
	// Err says which terms could not be parsed.
	Err error
	// HostPorts are the ports of the node that the pod takes.
	HostPorts []HostPort

	pod atomic.Pointer[v1.Pod]
}

// NewPodInfo works out what scheduling needs of pod.
func NewPodInfo(pod *v1.Pod) *PodInfo {
	p := &PodInfo{HostPorts: HostPorts(pod)}
	requests := Requests(pod)
	p.Requests = NewResource(requests)
	p.NonZeroMilliCPU, p.NonZeroMemory = requestsForScoring(pod, requests)
	p.parseAffinity(pod)
	p.pod.Store(pod)
	return p
}

// OnNode returns p as it will be once it is bound to node. The pod is a shallow copy.
func (p *PodInfo) OnNode(node string) *PodInfo {
	pod := *p.Pod()
	pod.Spec.NodeName = node
	c := &PodInfo{
		Requests: p.Requests, NonZeroMilliCPU: p.NonZeroMilliCPU, NonZeroMemory: p.NonZeroMemory,
		RequiredAffinity: p.RequiredAffinity, RequiredAntiAffinity: p.RequiredAntiAffinity,
		PreferredAffinity: p.PreferredAffinity, PreferredAntiAffinity: p.PreferredAntiAffinity,
		Err: p.Err, HostPorts: p.HostPorts,
	}
	c.pod.Store(&pod)
	return c
}

// Pod returns the newest version of the pod. It must not be changed.
func (p *PodInfo) Pod() *v1.Pod { return p.pod.Load() }

// SetPod replaces the pod by a version that SameToScheduling holds for.
func (p *PodInfo) SetPod(pod *v1.Pod) { p.pod.Store(pod) }

// Priority returns the pod's priority.
func (p *PodInfo) Priority() int32 { return corev1helpers.PodPriority(p.Pod()) }

// SameToScheduling says whether a pod on a node that changed from p to o is the same to all who
// look at the pods of nodes. It holds for nearly all updates, which report status.
func (p *PodInfo) SameToScheduling(o *PodInfo) bool {
	a, b := p.Pod(), o.Pod()
	return a.UID == b.UID && (a.DeletionTimestamp == nil) == (b.DeletionTimestamp == nil) &&
		maps.Equal(a.Labels, b.Labels) && p.Requests.equal(&o.Requests) &&
		p.NonZeroMilliCPU == o.NonZeroMilliCPU && p.NonZeroMemory == o.NonZeroMemory
}

// hasAffinity says whether the pod's own affinity may concern others.
func (p *PodInfo) hasAffinity() bool {
	a := p.Pod().Spec.Affinity
	return a != nil && (a.PodAffinity != nil || a.PodAntiAffinity != nil)
}

// QueuedPod is a pod that waits to be scheduled.
type QueuedPod struct {
	*PodInfo
	// Added is when the pod was put into the queue the last time, FirstTried when it was first
	// let in to be tried.
	Added, FirstTried time.Time
	// Attempts counts how often the pod was popped, Unschedulable how often it was rejected, Errors
	// how often in a row it failed for an unexpected error.
	Attempts, Unschedulable, Errors int
	// Rejectors are the plugins that rejected the pod; empty after an error.
	Rejectors sets.Set[string]
	// Gate is the plugin that keeps the pod from being tried at all, if one does.
	Gate string
	// Ready is when the back-off ends; zero until it is worked out.
	Ready time.Time
	// Told is what the last failure told users.
	Told Told
}

// Told is what the status of a pod says that could not be scheduled, as soon as it is written.
type Told struct {
	Reason, Message string
	// Node is the one that the pod was nominated to.
	Node string
}

// Key returns the pod's UID, by which the queue knows it.
func (q *QueuedPod) Key() types.UID { return q.Pod().UID }

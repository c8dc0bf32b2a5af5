package framework

import (
	"context"
	"log/slog"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
)

// Handle is what plugins are given of the scheduler when they are made. Profile and the fields
// below it are set before the first pod comes into the queue, not when plugins are made.
type Handle struct {
	Kube      kubernetes.Interface
	Informers informers.SharedInformerFactory
	Recorder  events.EventRecorder
	Waiting   *WaitingPods
	Parallel  Parallel
	Log       *slog.Logger

	// Profile is the one that the plugin is in.
	Profile *Profile
	// NominatedTo returns the pods nominated to a node at this moment.
	NominatedTo func(node string) []*PodInfo
	// Activate has a pod tried again now, unless it is being tried.
	Activate func(pod *v1.Pod)
	// Failed has a pod tried again after its back-off, also if it is being tried now.
	Failed func(pod *v1.Pod)
	// LetGo keeps a pod that is not bound yet from being bound. It says whether the pod is not bound:
	// then it is tried again by itself, and its room is or soon becomes free.
	LetGo func(pod *v1.Pod) bool
	// Reopened tells that the PreEnqueue plugin gate, which kept pod waiting, does so no longer.
	Reopened func(pod *v1.Pod, gate string)
	// Background runs f alongside the cycles, on a goroutine that the scheduler waits for when it
	// stops; the context ends then. Before the scheduler runs, f waits until it does.
	Background func(f func(context.Context))
	// Preempt asks extenders which pods are to be removed for pod, of those on the nodes in
	// victims. It is nil if there are none.
	Preempt func(ctx context.Context, pod *v1.Pod, nodes *Snapshot, victims map[string]Victims) (map[string]Victims, error)
	// Moves returns the handler of an informer whose events may help pods that wait.
	Moves func(Kind) cache.ResourceEventHandler

	shared map[any]any
}

// Victims are pods of one node that would have to be removed, and how many of them a disruption
// budget wants to keep.
type Victims struct {
	Pods       []*v1.Pod
	Violations int
}

// Share returns the handle of another profile of the same scheduler, of which nothing is set yet
// but what all have in common.
func (h *Handle) Share() *Handle {
	if h.shared == nil {
		h.shared = make(map[any]any)
	}
	c := *h
	return &c
}

// Shared returns what plugins of all profiles have in common under key, made by the first that
// asks. It is for when plugins are made, one after the other.
func Shared[T any](h *Handle, key any, first func() T) T {
	if v, ok := h.shared[key].(T); ok {
		return v
	}
	v := first()
	if h.shared == nil {
		h.shared = map[any]any{}
	}
	h.shared[key] = v
	return v
}

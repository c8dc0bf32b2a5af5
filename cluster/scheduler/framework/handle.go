package framework

import (
	"context"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/events"
)

// Handle is what plugins are given of the scheduler when they are made. Profile and the fields
// below it are set before the first pod is tried, not when plugins are made.
type Handle struct {
	Kube      kubernetes.Interface
	Informers informers.SharedInformerFactory
	Recorder  events.EventRecorder
	Waiting   *WaitingPods
	Parallel  Parallel

	// Profile is the one that the plugin is in.
	Profile *Profile
	// NominatedTo returns the pods nominated to a node at this moment.
	NominatedTo func(node string) []*PodInfo
	// Activate has a pod tried again now, unless it is being tried.
	Activate func(pod *v1.Pod)
	// Reopened tells that the PreEnqueue plugin gate, which kept pod waiting, does so no longer.
	Reopened func(pod *v1.Pod, gate string)
	// Background runs f beside the cycles, on a goroutine that the scheduler waits for when it
	// stops; the context ends then.
	Background func(f func(context.Context))
}

// Package resize gives a running pod the resources that its object asks for now: the node has to
// agree, then containers are changed in place or started again.
package resize

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"
	"k8s.io/kubernetes/pkg/kubelet/events"

	"github.com/coracle-project/coracle/cluster/kubelet/cgroups"
	"github.com/coracle-project/coracle/cluster/kubelet/cri"
)

// A container that could not be resized is tried again after 1 s, doubling up to a minute.
const (
	firstRetry   = time.Second
	longestRetry = time.Minute
)

// Node is what resizing takes of the node.
type Node struct {
	Runtime  Runtime
	Recorder record.EventRecorder
	// Admit says whether the node can give a pod what its spec asks for now, and calls accept if so
	// before any other pod is given something. If not, the message says why, and the pod is to be
	// woken when another try makes sense.
	Admit   func(pod *v1.Pod, accept func()) (message string, ok bool)
	Cgroups Cgroups
	// Resources returns what a container asks for in cgroup figures.
	Resources func(pod *v1.Pod, c *v1.Container) *runtimeapi.LinuxContainerResources
}

// Cgroups gives pods' cgroups their limits, if cgroups are managed here.
type Cgroups interface {
	// Ensure makes the pod's cgroup with its limits. Of one with containers it raises limits only; if
	// some are more than the pod was allocated then, they are not exact.
	Ensure(pod *v1.Pod) (exact bool, err error)
	// Lower sets limits that are not exact, when the pod's containers are within theirs. It is an
	// error if the pod uses more.
	Lower(pod *v1.Pod) error
}

// Runtime is CRI's part that changes containers' resources.
type Runtime interface {
	UpdateContainerResources(context.Context, *runtimeapi.UpdateContainerResourcesRequest, ...grpc.CallOption) (
		*runtimeapi.UpdateContainerResourcesResponse, error)
	ContainerStats(context.Context, *runtimeapi.ContainerStatsRequest, ...grpc.CallOption) (*runtimeapi.ContainerStatsResponse, error)
}

// Resizer is how far the resize of one pod is. Only Given is safe for concurrent use.
type Resizer struct {
	Node
	given atomic.Pointer[allocation]
	known bool // what the pod's status told at first is known

	// pending is set while the node does not agree, progress while containers are not yet as
	// agreed.
	pending, progress *v1.PodCondition
	// fits is the allocation for which the pod's cgroup has room; exact says that it has no more.
	fits  *allocation
	exact bool
	// restarts are the containers that the resize policy wants started again, by name, with the ids
	// that they had then.
	restarts map[string]string
	// again is when what failed is tried again, after so many tries.
	again time.Time
	tries int
}

// New returns the Resizer of a pod that was not seen before.
func New(n Node, pod *v1.Pod) *Resizer {
	r := &Resizer{Node: n}
	r.given.Store(allocated(pod))
	return r
}

// Given returns a pod as the node has agreed to run it.
func (r *Resizer) Given(pod *v1.Pod) *v1.Pod {
	pod, _ = r.given.Load().apply(pod)
	return pod
}

// Restarts are the containers, by name and id, whose new resources take effect when they start
// again.
func (r *Resizer) Restarts() map[string]string { return r.restarts }

// Again is when containers that could not be resized are tried again, zero for never.
func (r *Resizer) Again() time.Time { return r.again }

// Conditions are what the pod's status says of its resize.
func (r *Resizer) Conditions() (all []v1.PodCondition) {
	for _, c := range []*v1.PodCondition{r.pending, r.progress} {
		if c != nil {
			all = append(all, *c)
		}
	}
	return all
}

// Allocate asks the node for what the pod wants, and returns the pod as the node has agreed to run
// it.
func (r *Resizer) Allocate(pod *v1.Pod, observed *kubecontainer.PodStatus) *v1.Pod {
	before, differs := r.given.Load().apply(pod)
	if !r.known {
		r.known = true
		_, r.progress = podutil.GetPodConditionFromList(pod.Status.Conditions, v1.PodResizeInProgress)
		_, r.pending = podutil.GetPodConditionFromList(pod.Status.Conditions, v1.PodResizePending)
		if r.progress != nil {
			r.markUnfinished(before, observed)
		}
	}
	if !differs {
		r.pending = nil
		return pod
	}
	message, ok := r.Admit(pod, func() { r.given.Store(allocationOf(pod)) })
	if !ok {
		if was := r.pending; was == nil || was.ObservedGeneration != pod.Generation {
			r.Recorder.Event(pod, v1.EventTypeWarning, events.ResizeDeferred,
				events.PodResizePendingMsg(klog.Background(), pod, v1.PodReasonDeferred, message, pod.Generation))
		}
		r.pending = condition(r.pending, v1.PodResizePending, v1.PodReasonDeferred, message, pod.Generation)
		return before
	}
	r.pending, r.again, r.tries = nil, time.Time{}, 0
	r.progress = condition(nil, v1.PodResizeInProgress, "", "", pod.Generation)
	r.markRestarts(before, pod, observed)
	r.Recorder.Event(pod, v1.EventTypeNormal, events.ResizeStarted, events.PodResizeStartedMsg(klog.Background(), pod, pod.Generation))
	return pod
}

// Resize gives running containers the resources that the pod was allocated. It returns whether it
// changed any. That not all could be changed is told in the pod's conditions, and tried again
// later. look is called with each container that was changed.
func (r *Resizer) Resize(ctx context.Context, pod *v1.Pod, observed *kubecontainer.PodStatus,
	look func(ctx context.Context, id string),
) (resized bool) {
	if time.Now().Before(r.again) {
		return false
	}
	err := r.Grow(pod)
	if err == nil {
		resized, err = r.resizeAll(ctx, pod, observed, look)
	}
	if err == nil {
		r.tries, r.again = 0, time.Time{}
		return resized
	}
	if ctx.Err() != nil {
		return resized
	}
	r.again = time.Now().Add(min(firstRetry<<min(r.tries, 10), longestRetry))
	r.tries++
	r.failed(pod, err)
	return true
}

// Grow sees to it that the pod's cgroup has room for what the pod was allocated. Containers grow,
// or start with more, after that.
func (r *Resizer) Grow(pod *v1.Pod) (err error) {
	given := r.given.Load()
	if r.fits == given {
		return nil
	}
	if r.exact, err = r.Cgroups.Ensure(pod); err == nil {
		r.fits = given
	}
	return err
}

// resizeAll resizes the containers of a pod whose cgroup has room for them, and then lowers the
// limits of the cgroup. It does the latter once: with one container after another, the cgroup would
// be smaller than what is in it, and the kernel would kill processes.
func (r *Resizer) resizeAll(ctx context.Context, pod *v1.Pod, observed *kubecontainer.PodStatus,
	look func(ctx context.Context, id string),
) (resized bool, err error) {
	var errs []error
	restarting := false
	for _, s := range observed.ContainerStatuses {
		c := kubecontainer.GetContainerSpec(pod, s.Name)
		if s.State != kubecontainer.ContainerStateRunning || c == nil {
			continue
		}
		if r.restarts[s.Name] == s.ID.ID {
			restarting = true
			continue
		}
		want := r.Resources(pod, c)
		if !outgrown(want, s.Resources) {
			continue
		}
		if err := r.resizeOne(ctx, pod, s, want, look); err != nil {
			errs = append(errs, err)
			continue
		}
		resized = true
	}
	if r.exact || restarting || len(errs) > 0 {
		return resized, errors.Join(errs...)
	}
	err = r.Cgroups.Lower(pod)
	r.exact = err == nil
	return resized, err
}

// failed tells that containers could not be given what was allocated.
func (r *Resizer) failed(pod *v1.Pod, err error) {
	was, generation := r.progress, pod.Generation
	if was != nil {
		generation = was.ObservedGeneration
	}
	r.progress = condition(was, v1.PodResizeInProgress, v1.PodReasonError, err.Error(), generation)
	if r.progress != was {
		r.Recorder.Event(pod, v1.EventTypeWarning, events.ResizeError,
			events.PodResizeErrorMsg(klog.Background(), pod, generation, err.Error()))
	}
}

func (r *Resizer) resizeOne(ctx context.Context, pod *v1.Pod, s *kubecontainer.Status, want *runtimeapi.LinuxContainerResources,
	look func(ctx context.Context, id string),
) error {
	if err := r.fitsMemory(ctx, s, want); err != nil {
		return fmt.Errorf("cannot decrease memory limits: %w", err)
	}
	_, err := r.Runtime.UpdateContainerResources(ctx, &runtimeapi.UpdateContainerResourcesRequest{ContainerId: s.ID.ID, Linux: want})
	if err != nil {
		return fmt.Errorf("resize container %s: %s", s.Name, cri.Message(err))
	}
	look(ctx, s.ID.ID)
	return nil
}

// fitsMemory refuses a limit that is less than the container uses now: it would be killed.
func (r *Resizer) fitsMemory(ctx context.Context, s *kubecontainer.Status, want *runtimeapi.LinuxContainerResources) error {
	limit := want.MemoryLimitInBytes
	if limit == 0 || s.Resources.MemoryLimit != nil && limit >= s.Resources.MemoryLimit.Value() {
		return nil
	}
	answer, err := r.Runtime.ContainerStats(ctx, &runtimeapi.ContainerStatsRequest{ContainerId: s.ID.ID})
	if err != nil {
		return fmt.Errorf("memory usage of container %q: %s", s.Name, cri.Message(err))
	}
	used := answer.GetStats().GetMemory().GetUsageBytes()
	switch {
	case used == nil:
		return fmt.Errorf("missing container %q memory usage", s.Name)
	case used.Value >= uint64(limit):
		return fmt.Errorf("attempting to set container %q memory limit (%d) below current usage (%d)", s.Name, limit, used.Value)
	}
	return nil
}

// Finish notes that a resize is over, if it is. It returns whether it was noted.
func (r *Resizer) Finish(pod *v1.Pod, observed *kubecontainer.PodStatus) bool {
	was := r.progress
	if was == nil || !r.exact || r.underway(pod, observed) {
		return false
	}
	r.progress = nil
	r.Recorder.Event(pod, v1.EventTypeNormal, events.ResizeCompleted,
		events.PodResizeCompletedMsg(klog.Background(), pod, was.ObservedGeneration))
	return true
}

// underway says whether a running container has not what was allocated.
func (r *Resizer) underway(pod *v1.Pod, observed *kubecontainer.PodStatus) bool {
	for _, s := range observed.ContainerStatuses {
		c := kubecontainer.GetContainerSpec(pod, s.Name)
		if s.State != kubecontainer.ContainerStateRunning || c == nil {
			continue
		}
		if r.restarts[s.Name] == s.ID.ID || outgrown(r.Resources(pod, c), s.Resources) {
			return true
		}
	}
	return false
}

// outgrown says whether a container's cgroup differs from what is wanted.
func outgrown(want *runtimeapi.LinuxContainerResources, have *kubecontainer.ContainerResources) bool {
	return outgrownIn(v1.ResourceCPU, want, have) || outgrownIn(v1.ResourceMemory, want, have)
}

// outgrownIn is outgrown for one resource. A runtime that reports a container's resources reports
// no limit where there is none, so a limit that is wanted and missing has yet to be set. A limit
// that is no longer wanted stays.
func outgrownIn(name v1.ResourceName, want *runtimeapi.LinuxContainerResources, have *kubecontainer.ContainerResources) bool {
	if have == nil || have.CPURequest == nil && have.CPULimit == nil && have.MemoryLimit == nil {
		return false // it does not tell
	}
	if name == v1.ResourceMemory {
		q := have.MemoryLimit
		return want.MemoryLimitInBytes != 0 && (q == nil || q.Value() != want.MemoryLimitInBytes)
	}
	if q := have.CPURequest; q != nil && cgroups.Shares(q.MilliValue()) != want.CpuShares {
		return true
	}
	q := have.CPULimit
	return want.CpuQuota != 0 && (q == nil || cgroups.Quota(q.MilliValue()) != want.CpuQuota)
}

// markRestarts notes which running containers want to be started again for what changes of them.
func (r *Resizer) markRestarts(before, after *v1.Pod, observed *kubecontainer.PodStatus) {
	r.mark(after, observed, func(s *kubecontainer.Status, is *v1.Container, name v1.ResourceName) bool {
		was := kubecontainer.GetContainerSpec(before, s.Name)
		return was != nil && !sameAmounts(was, is, name)
	})
}

// markUnfinished notes which running containers a process before this one would have started again.
func (r *Resizer) markUnfinished(given *v1.Pod, observed *kubecontainer.PodStatus) {
	r.mark(given, observed, func(s *kubecontainer.Status, c *v1.Container, name v1.ResourceName) bool {
		return outgrownIn(name, r.Resources(given, c), s.Resources)
	})
}

// mark notes which running containers want to be started again for a resource that changes.
func (r *Resizer) mark(pod *v1.Pod, observed *kubecontainer.PodStatus,
	changes func(*kubecontainer.Status, *v1.Container, v1.ResourceName) bool,
) {
	for _, s := range observed.ContainerStatuses {
		c := kubecontainer.GetContainerSpec(pod, s.Name)
		if s.State != kubecontainer.ContainerStateRunning || c == nil {
			continue
		}
		for _, policy := range c.ResizePolicy {
			if policy.RestartPolicy == v1.RestartContainer && changes(s, c, policy.ResourceName) {
				if r.restarts == nil {
					r.restarts = map[string]string{}
				}
				r.restarts[s.Name] = s.ID.ID
			}
		}
	}
}

func sameAmounts(a, b *v1.Container, name v1.ResourceName) bool {
	same := func(a, b v1.ResourceList) bool {
		qa, qb := a[name], b[name]
		return qa.Cmp(qb) == 0
	}
	return same(a.Resources.Requests, b.Resources.Requests) && same(a.Resources.Limits, b.Resources.Limits)
}

// condition is a condition that says the same as was, if it does, from the same time on.
func condition(was *v1.PodCondition, kind v1.PodConditionType, reason, message string, generation int64) *v1.PodCondition {
	if was != nil && was.Reason == reason && was.Message == message && was.ObservedGeneration == generation {
		return was
	}
	now := metav1.NewTime(time.Now())
	c := &v1.PodCondition{
		Type: kind, Status: v1.ConditionTrue, Reason: reason, Message: message, ObservedGeneration: generation, LastProbeTime: now,
		LastTransitionTime: now,
	}
	if was != nil && was.Reason == reason {
		c.LastTransitionTime = was.LastTransitionTime
	}
	return c
}

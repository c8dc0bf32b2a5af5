package pod

import (
	"context"
	"errors"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"
	"k8s.io/kubernetes/pkg/kubelet/events"

	"github.com/coracle-project/coracle/cluster/kubelet/cgroups"
	"github.com/coracle-project/coracle/cluster/kubelet/cri"
)

// resize gives running containers the resources that the pod was allocated. It returns whether it
// changed any. That not all could be changed is told in the pod's conditions, and tried again
// later.
func (w *worker) resize(ctx context.Context, pod *v1.Pod) (resized bool) {
	if time.Now().Before(w.resizing.again) {
		return false
	}
	var errs []error
	for _, s := range w.observed.ContainerStatuses {
		c := kubecontainer.GetContainerSpec(pod, s.Name)
		if s.State != kubecontainer.ContainerStateRunning || c == nil || !resizable(pod, c) || w.resizing.restart[s.Name] == s.ID.ID {
			continue
		}
		want := w.r.configs.ContainerResources(pod, c)
		if !outgrown(want, s.Resources) {
			continue
		}
		if err := w.resizeOne(ctx, pod, s, want); err != nil {
			errs = append(errs, err)
			continue
		}
		resized = true
	}
	err := errors.Join(errs...)
	if err == nil {
		w.resizing.tries, w.resizing.again = 0, time.Time{}
		return resized
	}
	if ctx.Err() != nil {
		return resized
	}
	w.resizing.again = time.Now().Add(min(retryFirst<<min(w.resizing.tries, 10), retryMost))
	w.resizing.tries++
	w.resizeFailed(pod, err)
	return true
}

// resizeFailed tells that containers could not be given what was allocated.
func (w *worker) resizeFailed(pod *v1.Pod, err error) {
	was, generation := w.resizing.progress, pod.Generation
	if was != nil {
		generation = was.ObservedGeneration
	}
	w.resizing.progress = resizeCondition(was, v1.PodResizeInProgress, v1.PodReasonError, err.Error(), generation)
	if w.resizing.progress != was {
		w.r.Recorder.Event(pod, v1.EventTypeWarning, events.ResizeError,
			events.PodResizeErrorMsg(klog.Background(), pod, generation, err.Error()))
	}
}

func (w *worker) resizeOne(ctx context.Context, pod *v1.Pod, s *kubecontainer.Status, want *runtimeapi.LinuxContainerResources) error {
	if err := w.fitsMemory(ctx, s, want); err != nil {
		return fmt.Errorf("cannot decrease memory limits: %w", err)
	}
	// The pod's cgroup must not be smaller than what is in it: it grows before its containers do,
	// and shrinks after them. Of the two calls one does nothing, or is refused and then not needed.
	_ = w.r.Cgroups.Ensure(pod)
	_, err := w.r.CRI.Runtime.UpdateContainerResources(ctx, &runtimeapi.UpdateContainerResourcesRequest{ContainerId: s.ID.ID, Linux: want})
	if err != nil {
		return fmt.Errorf("resize container %s: %s", s.Name, cri.Message(err))
	}
	w.look(ctx, s.ID.ID)
	return w.r.Cgroups.Ensure(pod)
}

// fitsMemory refuses a limit that is less than the container uses now: it would be killed.
func (w *worker) fitsMemory(ctx context.Context, s *kubecontainer.Status, want *runtimeapi.LinuxContainerResources) error {
	limit := want.MemoryLimitInBytes
	if limit == 0 || s.Resources.MemoryLimit != nil && limit >= s.Resources.MemoryLimit.Value() {
		return nil
	}
	answer, err := w.r.CRI.Runtime.ContainerStats(ctx, &runtimeapi.ContainerStatsRequest{ContainerId: s.ID.ID})
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

// resized notes that a resize is over, if it is. It returns whether it was noted.
func (w *worker) resized(pod *v1.Pod) bool {
	was := w.resizing.progress
	if was == nil || w.underway(pod) {
		return false
	}
	w.resizing.progress = nil
	w.r.Recorder.Event(pod, v1.EventTypeNormal, events.ResizeCompleted,
		events.PodResizeCompletedMsg(klog.Background(), pod, was.ObservedGeneration))
	return true
}

// underway says whether a running container has not what was allocated.
func (w *worker) underway(pod *v1.Pod) bool {
	for _, s := range w.observed.ContainerStatuses {
		c := kubecontainer.GetContainerSpec(pod, s.Name)
		if s.State != kubecontainer.ContainerStateRunning || c == nil || !resizable(pod, c) {
			continue
		}
		if w.resizing.restart[s.Name] == s.ID.ID || outgrown(w.r.configs.ContainerResources(pod, c), s.Resources) {
			return true
		}
	}
	return false
}

// resizable says whether a container's resources can be changed while it runs: init containers that
// run once keep theirs.
func resizable(pod *v1.Pod, c *v1.Container) bool {
	for i := range pod.Spec.InitContainers {
		if pod.Spec.InitContainers[i].Name == c.Name {
			return podutil.IsRestartableInitContainer(c)
		}
	}
	return true
}

// outgrown says whether a container's cgroup differs from what is wanted. A runtime that reports a
// container's resources reports no limit where there is none, so a limit that is wanted and missing
// has yet to be set. A limit that is no longer wanted stays.
func outgrown(want *runtimeapi.LinuxContainerResources, have *kubecontainer.ContainerResources) bool {
	if have == nil || have.CPURequest == nil && have.CPULimit == nil && have.MemoryLimit == nil {
		return false // it does not tell
	}
	if q := have.CPURequest; q != nil && cgroups.Shares(q.MilliValue()) != want.CpuShares {
		return true
	}
	if q := have.CPULimit; want.CpuQuota != 0 && (q == nil || cgroups.Quota(q.MilliValue()) != want.CpuQuota) {
		return true
	}
	q := have.MemoryLimit
	return want.MemoryLimitInBytes != 0 && (q == nil || q.Value() != want.MemoryLimitInBytes)
}

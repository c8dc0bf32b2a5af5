package pod

import (
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"
	"k8s.io/kubernetes/pkg/kubelet/events"
)

// allocation is what the node has agreed to give to a pod. Its spec may ask for more or less by
// then: a resize. Until the node agrees, everything goes by the allocation: containers that are
// started again, cgroups, the status, and what is left for other pods. A value of this type is not
// changed.
//
// It is written down in the status, as allocatedResources and resources, and only there.
type allocation struct {
	pod        *v1.ResourceRequirements
	containers map[string]v1.ResourceRequirements
}

func allocationOf(pod *v1.Pod) *allocation {
	a := &allocation{pod: pod.Spec.Resources.DeepCopy(), containers: map[string]v1.ResourceRequirements{}}
	for _, list := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			a.containers[list[i].Name] = *list[i].Resources.DeepCopy()
		}
	}
	return a
}

// allocated is the allocation of a pod that the runner has not seen before. It is what the pod asks
// for, unless the status says that a resize was pending, or has not heard of the spec as it is now.
func allocated(pod *v1.Pod) *allocation {
	a := allocationOf(pod)
	s := &pod.Status
	_, pending := podutil.GetPodConditionFromList(s.Conditions, v1.PodResizePending)
	if pending == nil && s.ObservedGeneration == pod.Generation {
		return a
	}
	for _, c := range slices.Concat(s.InitContainerStatuses, s.ContainerStatuses) {
		asked, known := a.containers[c.Name]
		if !known || c.AllocatedResources == nil || c.Resources == nil {
			continue
		}
		for _, name := range []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory} { // no others can be resized
			keep(asked.Requests, c.AllocatedResources, name)
			keep(asked.Limits, c.Resources.Limits, name)
		}
	}
	return a
}

// keep puts the amount that was allocated in place of the one that is asked for, none if none was.
func keep(asked, allocated v1.ResourceList, name v1.ResourceName) {
	_, asks := asked[name]
	q, has := allocated[name]
	switch {
	case asks && has:
		asked[name] = q
	case asks:
		delete(asked, name)
	}
}

// apply returns the pod with what it was given in place of what it asks for, and whether the two
// differ.
func (a *allocation) apply(pod *v1.Pod) (*v1.Pod, bool) {
	if a == nil {
		return pod, false
	}
	differs := !equality.Semantic.DeepEqual(pod.Spec.Resources, a.pod)
	each := func(p *v1.Pod, f func(c *v1.Container, given v1.ResourceRequirements)) {
		for _, list := range [][]v1.Container{p.Spec.InitContainers, p.Spec.Containers} {
			for i := range list {
				if given, ok := a.containers[list[i].Name]; ok && !equality.Semantic.DeepEqual(list[i].Resources, given) {
					f(&list[i], given)
				}
			}
		}
	}
	each(pod, func(*v1.Container, v1.ResourceRequirements) { differs = true })
	if !differs {
		return pod, false
	}
	p := pod.DeepCopy()
	p.Spec.Resources = a.pod
	each(p, func(c *v1.Container, given v1.ResourceRequirements) { c.Resources = given })
	return p, true
}

// resizing is how far a resize is.
type resizing struct {
	// pending is set while the node does not agree, progress while containers are not yet as
	// agreed.
	pending, progress *v1.PodCondition
	// restart are the containers that the resize policy wants started again, by name, with the ids
	// that they had then.
	restart map[string]string
	// again is when what failed is tried again, after so many tries.
	again time.Time
	tries int
}

// conditions are what the pod's status says of it.
func (r *resizing) conditions() (all []v1.PodCondition) {
	for _, c := range []*v1.PodCondition{r.pending, r.progress} {
		if c != nil {
			all = append(all, *c)
		}
	}
	return all
}

// allocate asks the node for what the pod wants, and returns the pod as the node has agreed to run
// it.
func (w *worker) allocate(pod *v1.Pod) *v1.Pod {
	given := w.given.Load()
	if !w.written { // the first time
		_, w.resizing.progress = podutil.GetPodConditionFromList(pod.Status.Conditions, v1.PodResizeInProgress)
		_, w.resizing.pending = podutil.GetPodConditionFromList(pod.Status.Conditions, v1.PodResizePending)
	}
	before, differs := given.apply(pod)
	if !differs {
		w.resizing.pending = nil
		return pod
	}
	message, ok := w.r.AdmitResize(pod, func() { w.given.Store(allocationOf(pod)) })
	if !ok {
		if was := w.resizing.pending; was == nil || was.ObservedGeneration != pod.Generation {
			w.r.Recorder.Event(pod, v1.EventTypeWarning, events.ResizeDeferred,
				events.PodResizePendingMsg(klog.Background(), pod, v1.PodReasonDeferred, message, pod.Generation))
		}
		w.resizing.pending = resizeCondition(w.resizing.pending, v1.PodResizePending, v1.PodReasonDeferred, message, pod.Generation)
		return before
	}
	w.resizing.pending, w.resizing.again, w.resizing.tries = nil, time.Time{}, 0
	w.resizing.progress = resizeCondition(nil, v1.PodResizeInProgress, "", "", pod.Generation)
	w.markRestarts(before, pod)
	w.r.Recorder.Event(pod, v1.EventTypeNormal, events.ResizeStarted, events.PodResizeStartedMsg(klog.Background(), pod, pod.Generation))
	return pod
}

// current is the newest object of the pod, as the node has agreed to run it.
func (w *worker) current() *v1.Pod {
	pod, _ := w.object()
	pod, _ = w.given.Load().apply(pod)
	return pod
}

// markRestarts notes which running containers want to be started again for what changes of them.
func (w *worker) markRestarts(before, after *v1.Pod) {
	for _, s := range w.observed.ContainerStatuses {
		was, is := kubecontainer.GetContainerSpec(before, s.Name), kubecontainer.GetContainerSpec(after, s.Name)
		if s.State != kubecontainer.ContainerStateRunning || was == nil || is == nil {
			continue
		}
		for _, policy := range is.ResizePolicy {
			if policy.RestartPolicy == v1.RestartContainer && !sameAmounts(was, is, policy.ResourceName) {
				if w.resizing.restart == nil {
					w.resizing.restart = map[string]string{}
				}
				w.resizing.restart[s.Name] = s.ID.ID
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

// resizeCondition is a condition that says the same as was, if it does, from the same time on.
func resizeCondition(was *v1.PodCondition, kind v1.PodConditionType, reason, message string, generation int64) *v1.PodCondition {
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

package resize

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
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
		if asked, known := a.containers[c.Name]; known {
			keep(&asked, c.AllocatedResources, c.Resources)
		}
	}
	if a.pod != nil {
		keep(a.pod, s.AllocatedResources, s.Resources)
	}
	return a
}

// keep puts the amounts that were allocated in place of those that are asked for, none where none
// were. A status without them says nothing.
func keep(asked *v1.ResourceRequirements, requests v1.ResourceList, given *v1.ResourceRequirements) {
	if requests == nil || given == nil {
		return
	}
	for _, name := range []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory} { // no others can be resized
		keepAmount(asked.Requests, requests, name)
		keepAmount(asked.Limits, given.Limits, name)
	}
}

func keepAmount(asked, allocated v1.ResourceList, name v1.ResourceName) {
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

// SameResources says whether two states of a pod ask for the same resources.
func SameResources(a, b *v1.Pod) bool {
	_, differs := allocationOf(a).apply(b)
	return !differs
}

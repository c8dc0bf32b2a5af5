package status

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"
	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"
)

// Below these, cgroups cannot tell one figure from another: what was asked for is reported.
const (
	minMilliCPURequest = 2
	minMilliCPULimit   = 10
)

// resources reports what the container was given: what its cgroup says of a running one, as far as
// the runtime tells, and what it asked for otherwise.
func resources(c *v1.Container, k *kubecontainer.Status, s *v1.ContainerStatus) {
	s.AllocatedResources = c.Resources.DeepCopy().Requests
	s.Resources = c.Resources.DeepCopy()
	actual := k.Resources
	if k.State != kubecontainer.ContainerStateRunning || actual == nil {
		return
	}
	if limits := s.Resources.Limits; limits != nil {
		cpu(limits, actual.CPULimit, minMilliCPULimit)
		if actual.MemoryLimit != nil {
			limits[v1.ResourceMemory] = actual.MemoryLimit.DeepCopy()
		}
	}
	if requests := s.Resources.Requests; requests != nil {
		cpu(requests, actual.CPURequest, minMilliCPURequest)
		if actual.MemoryRequest != nil {
			requests[v1.ResourceMemory] = actual.MemoryRequest.DeepCopy()
		}
	}
}

func cpu(list v1.ResourceList, actual *resource.Quantity, least int64) {
	if actual != nil && (actual.MilliValue() > least || list.Cpu().MilliValue() > least) {
		list[v1.ResourceCPU] = actual.DeepCopy()
	}
}

// podResources reports the sums that the pod was given.
func podResources(pod *v1.Pod, s *v1.PodStatus) {
	options := resourcehelper.PodResourcesOptions{}
	s.AllocatedResources = resourcehelper.PodRequests(pod, options)
	s.Resources = pod.Spec.Resources.DeepCopy()
	if s.Resources == nil {
		s.Resources = &v1.ResourceRequirements{}
	}
	s.Resources.Requests = resourcehelper.PodRequests(pod, options)
	s.Resources.Limits = resourcehelper.PodLimits(pod, options)
}

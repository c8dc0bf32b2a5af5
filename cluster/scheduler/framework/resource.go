package framework

import (
	"maps"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"
	corehelper "k8s.io/kubernetes/pkg/apis/core/v1/helper"
)

// What a container without requests counts as when nodes are scored, so that such pods are spread
// too.
const (
	DefaultMilliCPU int64 = 100
	DefaultMemory   int64 = 200 << 20
)

// Resource is a set of amounts. The zero value is nothing.
type Resource struct {
	MilliCPU         int64
	Memory           int64 // bytes
	EphemeralStorage int64 // bytes
	Pods             int64
	// Scalar are extended resources, huge pages and the like. It is shared: who changes an amount
	// replaces the map.
	Scalar map[v1.ResourceName]int64
}

// NewResource returns list as amounts; resources that are not scheduled by are left out.
func NewResource(list v1.ResourceList) Resource {
	var r Resource
	for name, q := range list {
		switch name {
		case v1.ResourceCPU:
			r.MilliCPU = q.MilliValue()
		case v1.ResourceMemory:
			r.Memory = q.Value()
		case v1.ResourceEphemeralStorage:
			r.EphemeralStorage = q.Value()
		case v1.ResourcePods:
			r.Pods = q.Value()
		default:
			if isScalar(name) {
				if r.Scalar == nil {
					r.Scalar = make(map[v1.ResourceName]int64)
				}
				r.Scalar[name] = q.Value()
			}
		}
	}
	return r
}

func isScalar(name v1.ResourceName) bool {
	return corehelper.IsExtendedResourceName(name) || corehelper.IsHugePageResourceName(name) ||
		corehelper.IsPrefixedNativeResource(name) || corehelper.IsAttachableVolumeResourceName(name)
}

// IsScalar says whether name is kept in Resource.Scalar.
func IsScalar(name v1.ResourceName) bool {
	switch name {
	case v1.ResourceCPU, v1.ResourceMemory, v1.ResourceEphemeralStorage, v1.ResourcePods:
		return false
	}
	return isScalar(name)
}

// Amount returns how much of name there is.
func (r *Resource) Amount(name v1.ResourceName) int64 {
	switch name {
	case v1.ResourceCPU:
		return r.MilliCPU
	case v1.ResourceMemory:
		return r.Memory
	case v1.ResourceEphemeralStorage:
		return r.EphemeralStorage
	case v1.ResourcePods:
		return r.Pods
	}
	return r.Scalar[name]
}

// Empty says whether r asks for nothing; a pod's own place on a node does not count.
func (r *Resource) Empty() bool {
	return r.MilliCPU == 0 && r.Memory == 0 && r.EphemeralStorage == 0 && len(r.Scalar) == 0
}

// add adds o's amounts sign times.
func (r *Resource) add(o *Resource, sign int64) {
	r.MilliCPU += sign * o.MilliCPU
	r.Memory += sign * o.Memory
	r.EphemeralStorage += sign * o.EphemeralStorage
	if len(o.Scalar) == 0 {
		return
	}
	scalar := maps.Clone(r.Scalar)
	if scalar == nil {
		scalar = make(map[v1.ResourceName]int64, len(o.Scalar))
	}
	for name, n := range o.Scalar {
		scalar[name] += sign * n
	}
	r.Scalar = scalar
}

func (r *Resource) equal(o *Resource) bool {
	return r.MilliCPU == o.MilliCPU && r.Memory == o.Memory && r.EphemeralStorage == o.EphemeralStorage &&
		r.Pods == o.Pods && maps.Equal(r.Scalar, o.Scalar)
}

// Requests returns what pod requests, resized containers and pod-level requests included.
func Requests(pod *v1.Pod) v1.ResourceList {
	return resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{
		UseStatusResources: true,
		InPlacePodLevelResourcesVerticalScalingEnabled: true,
	})
}

// assumed are the requests that are assumed of containers without any.
var assumed = v1.ResourceList{
	v1.ResourceCPU:    *resource.NewMilliQuantity(DefaultMilliCPU, resource.DecimalSI),
	v1.ResourceMemory: *resource.NewQuantity(DefaultMemory, resource.DecimalSI),
}

// requestsForScoring returns pod's CPU and memory with containers that request none counted at the
// defaults, unless the pod itself says what all of it requests.
func requestsForScoring(pod *v1.Pod, requests v1.ResourceList) (milliCPU, memory int64) {
	missing := assumed
	if resourcehelper.IsPodLevelRequestsSet(pod) {
		missing = make(v1.ResourceList, len(assumed))
		for name, q := range assumed {
			if _, ok := requests[name]; !ok {
				missing[name] = q
			}
		}
	} else if allRequest(pod.Spec.Containers) && len(pod.Spec.InitContainers) == 0 {
		missing = nil
	}
	if len(missing) > 0 {
		requests = resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{
			UseStatusResources: true,
			InPlacePodLevelResourcesVerticalScalingEnabled: true,
			NonMissingContainerRequests:                    missing,
		})
	}
	cpu, mem := requests[v1.ResourceCPU], requests[v1.ResourceMemory]
	return cpu.MilliValue(), mem.Value()
}

// allRequest says whether there is nothing to assume of containers.
func allRequest(containers []v1.Container) bool {
	for i := range containers {
		requests := containers[i].Resources.Requests
		if _, ok := requests[v1.ResourceCPU]; !ok {
			return false
		}
		if _, ok := requests[v1.ResourceMemory]; !ok {
			return false
		}
	}
	return true
}

// ScoringRequests returns the CPU and memory that a pod which is still to be placed is scored
// with: its containers' requests, each counted at least at the defaults, whatever the pod itself
// says that all of it requests.
func (p *PodInfo) ScoringRequests() (milliCPU, memory int64) {
	pod := p.Pod()
	if !resourcehelper.IsPodLevelRequestsSet(pod) {
		return p.NonZeroMilliCPU, p.NonZeroMemory
	}
	requests := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{
		SkipPodLevelResources: true, NonMissingContainerRequests: assumed,
	})
	cpu, mem := requests[v1.ResourceCPU], requests[v1.ResourceMemory]
	return cpu.MilliValue(), mem.Value()
}

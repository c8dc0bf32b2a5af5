package cgroups

import (
	v1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"
)

// The kernel's bounds of CPU shares and quotas, and the period that quotas are of (µs).
const (
	leastShares = 2
	mostShares  = 262144
	leastQuota  = 1000
	Period      = 100000
)

// Shares returns the CPU shares for a request in thousandths of a CPU; none is the least.
func Shares(milli int64) int64 {
	return min(max(milli*1024/1000, leastShares), mostShares)
}

// Quota returns the CPU time in µs per Period for a limit in thousandths of a CPU, 0 for no limit.
func Quota(milli int64) int64 {
	if milli == 0 {
		return 0
	}
	return max(milli*Period/1000, leastQuota)
}

// figures are limits in the kernel's terms; 0 leaves one as it is.
type figures struct {
	shares, quota, memory, pids int64
}

// podFigures are the limits of a pod as a whole. It has a quota or a memory limit only if every
// container has one.
func podFigures(pod *v1.Pod, class v1.PodQOSClass) figures {
	if class == v1.PodQOSBestEffort {
		return figures{shares: leastShares}
	}
	f := figures{shares: Shares(milliRequested(pod))}
	limits := resourcehelper.PodLimits(pod, resourcehelper.PodResourcesOptions{})
	if limited(pod, v1.ResourceCPU) {
		f.quota = Quota(limits.Cpu().MilliValue())
	}
	if limited(pod, v1.ResourceMemory) {
		f.memory = limits.Memory().Value()
	}
	return f
}

func milliRequested(pod *v1.Pod) int64 {
	requests := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})
	return requests.Cpu().MilliValue()
}

func limited(pod *v1.Pod, r v1.ResourceName) bool {
	if pod.Spec.Resources != nil {
		if q, ok := pod.Spec.Resources.Limits[r]; ok && !q.IsZero() {
			return true
		}
	}
	for _, list := range [][]v1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range list {
			if q := list[i].Resources.Limits[r]; q.IsZero() {
				return false
			}
		}
	}
	return true
}

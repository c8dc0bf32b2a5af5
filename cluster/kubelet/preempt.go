package kubelet

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/kubernetes/pkg/api/v1/resource"
	v1qos "k8s.io/kubernetes/pkg/apis/core/v1/helper/qos"
	"k8s.io/kubernetes/pkg/kubelet/events"
	kubetypes "k8s.io/kubernetes/pkg/kubelet/types"

	"github.com/coracle-project/coracle/cluster/kubelet/status"
)

// What a pod and its events say when it makes room, in upstream's words.
const (
	preempted           = "Preempted in order to admit critical pod"
	preemptedDisruption = "Pod was preempted by Kubelet to accommodate a critical pod."
)

// admitCriticalLocked admits a critical pod for which there is too little of something: less
// important pods make room for it, as upstream's kubelet has them do. Static pods are critical. If
// that does not help, no pod ends. The pod does not wait for the ends of the others.
func (a *admission) admitCriticalLocked(n *v1.Node, p *v1.Pod, others []*v1.Pod) (reason, message string, ok bool) {
	chosen := victims(n, p, others)
	rest := slices.DeleteFunc(slices.Clone(others), func(o *v1.Pod) bool { return slices.Contains(chosen, o) })
	if reason, message, ok = admit(n, p, rest); !ok {
		return reason, message, false
	}
	for _, v := range chosen {
		a.preempted[v.UID] = true
		e := status.Eviction{Reason: events.PreemptContainer, Message: preempted, Disruption: true, Disrupted: preemptedDisruption}
		if a.evict(v.UID, e) {
			a.k.opts.Log.Info("a pod makes room for a critical one", "pod", v.Namespace+"/"+v.Name, "for", p.Namespace+"/"+p.Name)
			a.k.recorder.Event(v, v1.EventTypeWarning, events.PreemptContainer, preempted)
		}
	}
	return "", "", true
}

// victims are the pods without which p has enough of everything, as few as possible: BestEffort
// pods rather than Burstable ones, and these rather than Guaranteed ones. There are none if p would
// not fit even without all that are less important.
func victims(n *v1.Node, p *v1.Pod, others []*v1.Pod) (chosen []*v1.Pod) {
	var stay []*v1.Pod
	classes := map[v1.PodQOSClass][]*v1.Pod{}
	for _, o := range others {
		if kubetypes.Preemptable(p, o) {
			class := v1qos.GetPodQOS(o)
			classes[class] = append(classes[class], o)
		} else {
			stay = append(stay, o)
		}
	}
	if len(shortages(n, p, stay)) > 0 {
		return nil
	}
	// Of each class go those that are needed when all of the lower classes go, too.
	for _, class := range []v1.PodQOSClass{v1.PodQOSGuaranteed, v1.PodQOSBurstable, v1.PodQOSBestEffort} {
		left := classes[class]
		for {
			short := shortages(n, p, slices.Concat(stay, left))
			if len(short) == 0 {
				break
			}
			at := helpsMost(left, short)
			chosen = append(chosen, left[at])
			left = slices.Delete(left, at, at+1)
		}
		stay = append(stay, left...)
	}
	return chosen
}

// helpsMost is the index of the pod whose requests make up for most of what is short; of several
// the one that has the least.
func helpsMost(pods []*v1.Pod, short []shortage) (best int) {
	least := misses(pods[0], short)
	for i := 1; i < len(pods); i++ {
		m := misses(pods[i], short)
		if m < least || m == least && smaller(pods[i], pods[best]) {
			best, least = i, m
		}
	}
	return best
}

// misses is how much is still short without a pod: for each resource the square of the part of it.
func misses(p *v1.Pod, short []shortage) (sum float64) {
	for _, s := range short {
		missing := s.requested + s.used - s.capacity
		if left := missing - resource.GetResourceRequest(p, s.name); left > 0 {
			part := float64(left) / float64(missing)
			sum += part * part
		}
	}
	return sum
}

// smaller says whether a requests less memory than b, or as much and less CPU.
func smaller(a, b *v1.Pod) bool {
	for _, name := range []v1.ResourceName{v1.ResourceMemory, v1.ResourceCPU} {
		if x, y := resource.GetResourceRequest(a, name), resource.GetResourceRequest(b, name); x != y {
			return x < y
		}
	}
	return false
}

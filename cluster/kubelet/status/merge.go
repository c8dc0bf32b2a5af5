package status

import (
	v1 "k8s.io/api/core/v1"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
	kubetypes "k8s.io/kubernetes/pkg/kubelet/types"
	podconditions "k8s.io/kubernetes/pkg/util/pod"
)

// merged is the status that the object should have: the kubelet's part of it as wanted, the
// others' as it is. Conditions keep their places, so that what says the same is equal.
func merged(base *v1.Pod, e *entry) v1.PodStatus {
	was := &base.Status
	s := *e.want.DeepCopy()
	conditions := make([]v1.PodCondition, 0, len(was.Conditions)+len(s.Conditions))
	ends := !podutil.IsPodPhaseTerminal(was.Phase) && podutil.IsPodPhaseTerminal(s.Phase)
	for _, c := range was.Conditions {
		if !kubetypes.PodConditionByKubelet(c.Type) {
			conditions = append(conditions, c)
			continue
		}
		if _, now := podutil.GetPodConditionFromList(s.Conditions, c.Type); now != nil {
			conditions = append(conditions, *now)
		}
	}
	for i := range s.Conditions {
		c := &s.Conditions[i]
		_, there := podutil.GetPodConditionFromList(conditions, c.Type)
		switch {
		case kubetypes.PodConditionByKubelet(c.Type):
			if there == nil {
				conditions = append(conditions, *c)
			}
		case c.Type == v1.DisruptionTarget && ends && !e.running:
			conditions = podconditions.ReplaceOrAppendPodCondition(conditions, c)
		}
	}
	s.Conditions = conditions
	s.ResourceClaimStatuses = was.ResourceClaimStatuses
	s.ExtendedResourceClaimStatus = was.ExtendedResourceClaimStatus
	s.NodeAllocatableResourceClaimStatuses = was.NodeAllocatableResourceClaimStatuses
	s.NominatedNodeName = was.NominatedNodeName
	if ends && e.running {
		// Clients that wait for the end of the pod expect its containers to be gone.
		s.Phase, s.Reason, s.Message = was.Phase, was.Reason, was.Message
	}
	if podutil.IsPodPhaseTerminal(s.Phase) {
		notReady(&s)
	}
	return s
}

// notReady makes a pod that has ended unready, whatever its containers were last.
func notReady(s *v1.PodStatus) {
	reason := "PodCompleted"
	if s.Phase == v1.PodFailed {
		reason = "PodFailed"
	}
	for i := range s.Conditions {
		c := &s.Conditions[i]
		if (c.Type == v1.PodReady || c.Type == v1.ContainersReady) && c.Status == v1.ConditionTrue {
			c.Status, c.Reason, c.Message = v1.ConditionFalse, reason, ""
		}
	}
}

package status

import (
	"net/netip"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"
	kubetypes "k8s.io/kubernetes/pkg/kubelet/types"
)

// normalize brings a status into the form that the API gives back, so that two statuses which say
// the same are equal: whole seconds, containers in a fixed order, messages that fit.
func normalize(pod *v1.Pod, s *v1.PodStatus) {
	share := kubecontainer.MaxPodTerminationMessageLogLength
	if n := len(pod.Spec.Containers) + len(pod.Spec.InitContainers) + len(pod.Spec.EphemeralContainers); n > 0 {
		share /= n
	}
	seconds := func(t *metav1.Time) { *t = t.Rfc3339Copy() }
	if s.StartTime != nil {
		t := s.StartTime.Rfc3339Copy()
		s.StartTime = &t
	}
	valid(&s.Message)
	for i := range s.Conditions {
		valid(&s.Conditions[i].Message)
		seconds(&s.Conditions[i].LastProbeTime)
		seconds(&s.Conditions[i].LastTransitionTime)
	}
	state := func(c *v1.ContainerState) {
		if r := c.Running; r != nil {
			seconds(&r.StartedAt)
		}
		if t := c.Terminated; t != nil {
			seconds(&t.StartedAt)
			seconds(&t.FinishedAt)
			valid(&t.Message)
			if len(t.Message) > share {
				t.Message = strings.ToValidUTF8(t.Message[:share], "") // without a part of a character
			}
		}
		if w := c.Waiting; w != nil {
			valid(&w.Message)
		}
	}
	byName := func(a, b v1.ContainerStatus) int { return strings.Compare(a.Name, b.Name) }
	for _, all := range [][]v1.ContainerStatus{s.ContainerStatuses, s.InitContainerStatuses, s.EphemeralContainerStatuses} {
		for i := range all {
			state(&all[i].State)
			state(&all[i].LastTerminationState)
		}
	}
	slices.SortFunc(s.ContainerStatuses, byName)
	slices.SortFunc(s.EphemeralContainerStatuses, byName)
	kubetypes.SortInitContainerStatuses(pod, s.InitContainerStatuses)
}

// valid replaces what is no UTF-8, as the API does: containers write what they like.
func valid(text *string) { *text = strings.ToValidUTF8(*text, "\uFFFD") }

// ipOrder returns at most one address of each family, the family of the node's first address first.
func ipOrder(ips, hostIPs []string) []string {
	want4 := true
	if len(hostIPs) > 0 {
		if a, err := netip.ParseAddr(hostIPs[0]); err == nil {
			want4 = a.Unmap().Is4()
		}
	}
	var ordered []string
	for _, first := range []bool{want4, !want4} {
		for _, ip := range ips {
			if a, err := netip.ParseAddr(ip); err == nil && a.Unmap().Is4() == first {
				ordered = append(ordered, a.Unmap().String())
				break
			}
		}
	}
	return ordered
}

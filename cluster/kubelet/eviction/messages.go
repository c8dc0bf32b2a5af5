package eviction

import (
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"
	evictionapi "k8s.io/kubernetes/pkg/kubelet/eviction/api"
)

// The words are upstream's, which tools look for; so are the trailing blanks.

func conditionMessage(now []v1.NodeConditionType) string {
	return fmt.Sprintf("The node had condition: %v. ", now)
}

func emptyDirMessage(volume string, limit *resource.Quantity) string {
	return fmt.Sprintf("Usage of EmptyDir volume %q exceeds the limit %q. ", volume, limit.String())
}

func podLimitMessage(limit *resource.Quantity) string {
	return fmt.Sprintf("Pod ephemeral local storage usage exceeds the total limit of containers %s. ", limit.String())
}

func containerLimitMessage(container string, limit *resource.Quantity) string {
	return fmt.Sprintf("Container %s exceeded its local ephemeral storage limit %q. ", container, limit.String())
}

// shortMessage says what the node is short of, and which of the pod's containers exceed their
// requests. The annotations of the event say that again for programs.
func (m *Manager) shortMessage(short signal, pod *v1.Pod, u *usage, seen observations) (string, map[string]string) {
	var text strings.Builder
	fmt.Fprintf(&text, "The node was low on resource: %v. ", short.resource)
	if f, known := seen[short.name]; known {
		least, _ := m.Policy.least(short.name, f)
		fmt.Fprintf(&text, "Threshold quantity: %v, available: %v. ", amount(short.name, least), amount(short.name, f.available))
	}
	if u == nil {
		return text.String(), map[string]string{}
	}
	annotations := map[string]string{}
	if short.resource == v1.ResourceMemory && resourcehelper.IsPodLevelResourcesSet(pod) {
		if request, ok := pod.Spec.Resources.Requests[v1.ResourceMemory]; ok {
			used := resource.NewQuantity(u.memory, resource.BinarySI)
			fmt.Fprintf(&text, "Pod %s was using %s, request is %s, has larger consumption of %v. ", pod.Name, used, request.String(),
				short.resource)
			annotations["offending_pod"], annotations["offending_pod_usage"] = pod.Name, used.String()
		}
	}
	var names, amounts []string
	for _, c := range slices.Concat(pod.Spec.Containers, pod.Spec.InitContainers) {
		used, known := u.containers[c.Name]
		var q *resource.Quantity
		switch short.resource {
		case v1.ResourceMemory:
			q = resource.NewQuantity(used.memory, resource.BinarySI)
		case v1.ResourceEphemeralStorage:
			q = resource.NewQuantity(used.rootfs.bytes+used.logs.bytes, resource.BinarySI)
		}
		request := c.Resources.Requests[short.resource]
		if !known || q == nil || q.Cmp(request) <= 0 {
			continue
		}
		fmt.Fprintf(&text, "Container %s was using %s, request is %s, has larger consumption of %v. ", c.Name, q, request.String(),
			short.resource)
		names, amounts = append(names, c.Name), append(amounts, q.String())
	}
	annotations["offending_containers"] = strings.Join(names, ",")
	annotations["offending_containers_usage"] = strings.Join(amounts, ",")
	annotations["starved_resource"] = string(short.resource)
	return text.String(), annotations
}

func amount(name evictionapi.Signal, n int64) *resource.Quantity {
	if name == evictionapi.SignalNodeFsInodesFree || name == evictionapi.SignalImageFsInodesFree {
		return resource.NewQuantity(n, resource.DecimalSI)
	}
	return resource.NewQuantity(n, resource.BinarySI)
}

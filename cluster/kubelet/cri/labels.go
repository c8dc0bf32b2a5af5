package cri

import (
	"encoding/json"
	"strconv"

	v1 "k8s.io/api/core/v1"
	kubelettypes "k8s.io/kubelet/pkg/types"
	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"
)

// What a restarted kubelet must know of a container travels with it as CRI annotations, under the
// keys that upstream's kubelet uses, so that either takes over the other's containers.
const (
	annotationHash          = "io.kubernetes.container.hash"
	annotationRestartCount  = "io.kubernetes.container.restartCount"
	annotationMessagePath   = "io.kubernetes.container.terminationMessagePath"
	annotationMessagePolicy = "io.kubernetes.container.terminationMessagePolicy"
	annotationPreStop       = "io.kubernetes.container.preStopHandler"
	annotationPorts         = "io.kubernetes.container.ports"
	annotationDeletionGrace = "io.kubernetes.pod.deletionGracePeriod"
	annotationGrace         = "io.kubernetes.pod.terminationGracePeriod"
)

// SandboxLabels returns the labels of a pod's sandbox: the pod's own and those that name it.
func SandboxLabels(pod *v1.Pod) map[string]string {
	labels := make(map[string]string, len(pod.Labels)+3)
	for k, v := range pod.Labels {
		labels[k] = v
	}
	namePod(labels, pod)
	return labels
}

// ContainerLabels returns the labels of a container of a pod.
func ContainerLabels(pod *v1.Pod, container *v1.Container) map[string]string {
	labels := map[string]string{kubelettypes.KubernetesContainerNameLabel: container.Name}
	namePod(labels, pod)
	return labels
}

func namePod(labels map[string]string, pod *v1.Pod) {
	labels[kubelettypes.KubernetesPodNameLabel] = pod.Name
	labels[kubelettypes.KubernetesPodNamespaceLabel] = pod.Namespace
	labels[kubelettypes.KubernetesPodUIDLabel] = string(pod.UID)
}

// ContainerAnnotations returns what must be known of a container when only the runtime remembers
// it.
func ContainerAnnotations(pod *v1.Pod, container *v1.Container, restartCount int) map[string]string {
	a := map[string]string{
		annotationHash:          strconv.FormatUint(kubecontainer.HashContainer(container), 16),
		annotationRestartCount:  strconv.Itoa(restartCount),
		annotationMessagePath:   container.TerminationMessagePath,
		annotationMessagePolicy: string(container.TerminationMessagePolicy),
	}
	if s := pod.DeletionGracePeriodSeconds; s != nil {
		a[annotationDeletionGrace] = strconv.FormatInt(*s, 10)
	}
	if s := pod.Spec.TerminationGracePeriodSeconds; s != nil {
		a[annotationGrace] = strconv.FormatInt(*s, 10)
	}
	if container.Lifecycle != nil && container.Lifecycle.PreStop != nil {
		setJSON(a, annotationPreStop, container.Lifecycle.PreStop)
	}
	if len(container.Ports) > 0 {
		setJSON(a, annotationPorts, container.Ports)
	}
	return a
}

// setJSON never fails: API types always marshal.
func setJSON(a map[string]string, key string, value any) {
	if raw, err := json.Marshal(value); err == nil {
		a[key] = string(raw)
	}
}

// Remembered is a pod as its sandboxes and containers remember it: enough to end it with the grace
// and the hooks that it asked for, when the API no longer has it.
func Remembered(labels map[string]string, containers map[string]map[string]string) *v1.Pod {
	pod := &v1.Pod{}
	pod.Name = labels[kubelettypes.KubernetesPodNameLabel]
	pod.Namespace = labels[kubelettypes.KubernetesPodNamespaceLabel]
	pod.UID = uidOf(labels)
	for name, a := range containers {
		c := v1.Container{Name: name}
		if raw, ok := a[annotationPreStop]; ok {
			hook := &v1.LifecycleHandler{}
			if json.Unmarshal([]byte(raw), hook) == nil {
				c.Lifecycle = &v1.Lifecycle{PreStop: hook}
			}
		}
		if raw, ok := a[annotationPorts]; ok {
			_ = json.Unmarshal([]byte(raw), &c.Ports)
		}
		if s, err := strconv.ParseInt(a[annotationDeletionGrace], 10, 64); err == nil {
			pod.DeletionGracePeriodSeconds = &s
		}
		if s, err := strconv.ParseInt(a[annotationGrace], 10, 64); err == nil {
			pod.Spec.TerminationGracePeriodSeconds = &s
		}
		pod.Spec.Containers = append(pod.Spec.Containers, c)
	}
	return pod
}

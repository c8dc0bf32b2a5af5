// Package ref names pods' containers in events, as upstream does: the pod, with the container as
// the path of a field ("spec.containers{web}").
package ref

import (
	v1 "k8s.io/api/core/v1"
	_ "k8s.io/kubernetes/pkg/apis/core/install" // what upstream looks kinds up in is filled by this
	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"
)

// Container returns the reference for events about a container.
func Container(pod *v1.Pod, c *v1.Container) *v1.ObjectReference {
	r, err := kubecontainer.GenerateContainerRef(pod, c)
	if err != nil { // the event still names the pod
		return &v1.ObjectReference{
			Kind: "Pod", APIVersion: "v1", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion,
		}
	}
	return r
}

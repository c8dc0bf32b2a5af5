// Package podtest makes pods for tests.
package podtest

import (
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// Pod returns pod ns/p with init containers (a star marks a sidecar) and containers with these
// names.
func Pod(policy v1.RestartPolicy, inits, regulars string) *v1.Pod {
	p := &v1.Pod{}
	p.UID, p.Name, p.Namespace = "u", "p", "ns"
	p.Spec.RestartPolicy = policy
	for _, name := range strings.Fields(inits) {
		c := v1.Container{Name: strings.TrimSuffix(name, "*"), Image: "i:1"}
		if strings.HasSuffix(name, "*") { // a sidecar
			c.RestartPolicy = ptr.To(v1.ContainerRestartPolicyAlways)
		}
		p.Spec.InitContainers = append(p.Spec.InitContainers, c)
	}
	for _, name := range strings.Fields(regulars) {
		p.Spec.Containers = append(p.Spec.Containers, v1.Container{Name: name, Image: "i:1"})
	}
	return p
}

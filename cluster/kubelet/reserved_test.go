package kubelet

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// A pod asks for the port of a service of the node that is down for a moment: nothing listens
// there, so only the list of reserved ports is in its way.
func TestReservedPortsAreNoPods(t *testing.T) {
	reservedPorts := map[int]string{6443: "the API server"}
	for name, tc := range map[string]struct {
		port v1.ContainerPort
		want string
	}{
		"the API server's": {
			v1.ContainerPort{HostPort: 6443},
			"host port 6443/TCP belongs to the API server on this node; choose another hostPort",
		},
		"the kubelet's": {
			v1.ContainerPort{HostPort: 10250, Protocol: v1.ProtocolTCP},
			"host port 10250/TCP belongs to the kubelet on this node; choose another hostPort",
		},
		"the API server's, an address": {
			v1.ContainerPort{HostPort: 6443, HostIP: "127.0.0.1"},
			"host port 6443/TCP belongs to the API server on this node; choose another hostPort",
		},
		"the number, of UDP": {v1.ContainerPort{HostPort: 6443, Protocol: v1.ProtocolUDP}, ""},
		"another":            {v1.ContainerPort{HostPort: 8080}, ""},
		"no host port":       {v1.ContainerPort{ContainerPort: 6443}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			p := &v1.Pod{}
			p.Spec.Containers = []v1.Container{{Ports: []v1.ContainerPort{tc.port}}}
			reason, message, ok := reserved(p, 10250, reservedPorts)
			if ok != (tc.want == "") || message != tc.want || !ok && reason != "HostPortReserved" {
				t.Errorf("%v %q %q, want %q", ok, reason, message, tc.want)
			}
			// Positive control: nothing else of admission refuses it.
			if _, message, ok := admit(&v1.Node{Status: v1.NodeStatus{Allocatable: v1.ResourceList{v1.ResourcePods: resource.MustParse("3")}}}, p,
				nil); !ok {
				t.Errorf("admit refuses it anyway: %s", message)
			}
		})
	}
}

package kubelet

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/kubelet/network/dns"

	"github.com/coracle-project/coracle/cluster/kubelet/node"
)

// A pod asks for the port of a service of the node that is down for a moment: nothing listens there, so
// only the list of reserved ports is in its way.
func TestReservedPortsAreNoPods(t *testing.T) {
	reservedPorts := map[int]string{6443: "the API server"}
	for name, tc := range map[string]struct {
		port v1.ContainerPort
		want string
	}{
		"the API server's":             {v1.ContainerPort{HostPort: 6443}, "host port 6443/TCP belongs to the API server on this node; choose another hostPort"},
		"the kubelet's":                {v1.ContainerPort{HostPort: 10250, Protocol: v1.ProtocolTCP}, "host port 10250/TCP belongs to the kubelet on this node; choose another hostPort"},
		"the API server's, an address": {v1.ContainerPort{HostPort: 6443, HostIP: "127.0.0.1"}, "host port 6443/TCP belongs to the API server on this node; choose another hostPort"},
		"the number, of UDP":           {v1.ContainerPort{HostPort: 6443, Protocol: v1.ProtocolUDP}, ""},
		"another":                      {v1.ContainerPort{HostPort: 8080}, ""},
		"no host port":                 {v1.ContainerPort{ContainerPort: 6443}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			p := &v1.Pod{}
			p.Spec.Containers = []v1.Container{{Ports: []v1.ContainerPort{tc.port}}}
			reason, message, ok := reserved(p, 10250, reservedPorts)
			if ok != (tc.want == "") || message != tc.want || !ok && reason != "HostPortReserved" {
				t.Errorf("%v %q %q, want %q", ok, reason, message, tc.want)
			}
			// Positive control: nothing else of admission refuses it.
			if _, message, ok := admit(&v1.Node{Status: v1.NodeStatus{Allocatable: v1.ResourceList{v1.ResourcePods: resource.MustParse("3")}}}, p, nil); !ok {
				t.Errorf("admit refuses it anyway: %s", message)
			}
		})
	}
}

// heard keeps the reasons of events.
type heard struct {
	record.FakeRecorder
	reasons []string
}

func (h *heard) Eventf(_ runtime.Object, kind, reason, _ string, _ ...any) {
	h.reasons = append(h.reasons, kind+" "+reason)
}

func (h *heard) WithLogger(klog.Logger) record.EventRecorderLogger { return h }

// Regression: a cluster without DNS had a warning at each pod.
func TestNoPodIsWarnedOfMissingDNS(t *testing.T) {
	resolv := filepath.Join(t.TempDir(), "resolv.conf")
	if err := os.WriteFile(resolv, []byte("nameserver 192.0.2.1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	pod := &v1.Pod{}
	pod.Spec.DNSPolicy = v1.DNSClusterFirst
	recorder := &heard{}
	k := &Kubelet{recorder: recorder, opts: Options{NodeName: "n", NodeIPs: []string{"192.0.2.2"}, ResolvConf: resolv}}
	got, err := k.dns().GetPodDNS(t.Context(), pod)
	if err != nil || fmt.Sprint(got.GetServers()) != "[192.0.2.1]" {
		t.Errorf("the pod's DNS: %v, %v", got, err)
	}
	if len(recorder.reasons) > 0 {
		t.Errorf("events %q", recorder.reasons)
	}
	// Positive control: upstream's code, with nothing in between, warns.
	upstream := dns.NewConfigurer(recorder, node.Ref("n"), []net.IP{net.ParseIP("192.0.2.2")}, nil, "cluster.local", resolv)
	if _, err := upstream.GetPodDNS(t.Context(), pod); err != nil || !strings.Contains(fmt.Sprint(recorder.reasons), "Warning MissingClusterDNS") {
		t.Errorf("positive control: %q, %v", recorder.reasons, err)
	}
}

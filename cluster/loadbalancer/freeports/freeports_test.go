package freeports

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/internal/testkit"
)

const own, other = "192.0.2.1", "192.0.2.2"

func balancer(name string, port int, has ...string) *corev1.Service {
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: name, UID: types.UID(name)},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
			Ports: []corev1.ServicePort{{Protocol: corev1.ProtocolTCP, Port: int32(port)}},
		},
	}
	for _, ip := range has {
		s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{
			IP: ip, Ports: []corev1.PortStatus{{Protocol: corev1.ProtocolTCP, Port: int32(port)}},
		})
	}
	return s
}

// A node answers for the ports that Services lack at its address, as long as they do.
func TestNodeSaysWhichPortsAreFree(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Annotations: map[string]string{"other": "kept"}}}
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: "n"}, {Type: corev1.NodeInternalIP, Address: own}}
	kube := fake.NewClientset(node)
	watched := testkit.Watched(kube, "services")
	set := &client.Set{Kube: kube, Informers: client.NewInformers(kube)}
	c := New(set, Options{Node: "n", Client: kube, Busy: func(at netip.AddrPort, _ corev1.Protocol) (busy, local bool) {
		return at == netip.MustParseAddrPort(own+":22"), true
	}})
	ctx, cancel := context.WithCancel(t.Context())
	set.Informers.Start(ctx.Done())
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.Run(ctx)
	}()
	defer func() { cancel(); <-done; set.Informers.Shutdown() }()
	services := kube.CoreV1().Services("x")
	want := func(what string, want Answers) {
		t.Helper()
		testkit.Eventually(t.Context(), t, what, func() (bool, error) {
			n, err := kube.CoreV1().Nodes().Get(t.Context(), "n", metav1.GetOptions{})
			if err != nil || n.Annotations["other"] != "kept" {
				return false, err
			}
			return maps.Equal(Of(n), want) && (len(want) > 0 || n.Annotations[Annotation] == ""), fmt.Errorf("it says %q", n.Annotations[Annotation])
		})
	}
	class, others, elsewhere, ipv6 := "other.example.com/class", balancer("others", 81), balancer("elsewhere", 82), balancer("ipv6", 83)
	others.Spec.LoadBalancerClass = &class
	elsewhere.Spec.LoadBalancerIP = other
	ipv6.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv6Protocol}
	for _, s := range []*corev1.Service{
		balancer("given", 84, own, other), others, elsewhere, ipv6, balancer("ssh", 22), balancer("half", 80, other),
	} {
		if _, err := services.Create(t.Context(), s, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	ssh, half := Port{corev1.ProtocolTCP, 22}, Port{corev1.ProtocolTCP, 80}
	want("the ports of those that lack the address", Answers{ssh: true, half: false})
	watched(t)
	if err := services.Delete(t.Context(), "ssh", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	want("after one has gone", Answers{half: false})
	update := func(s *corev1.Service) {
		t.Helper()
		if _, err := services.Update(t.Context(), s, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	s := balancer("half", 80, other, own)
	update(s)
	want("when none lacks it", Answers{})
	s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Protocol: corev1.ProtocolUDP, Port: 80})
	update(s)
	want("after another port was added", Answers{{corev1.ProtocolUDP, 80}: false})
}

// What is no answer says nothing of a port.
func TestAnswersThatAreNone(t *testing.T) {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{
		Annotation: "80/TCP=free,=free,81=free,82/TCP=perhaps,70000/TCP=free,-1/TCP=free,83/UDP=used,,84/TCP",
	}}}
	want := Answers{{corev1.ProtocolTCP, 80}: false, {"", 81}: false, {corev1.ProtocolUDP, 83}: true}
	if got := Of(n); !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	n.Annotations[Annotation] = want.String()
	if got := Of(n); !maps.Equal(got, want) {
		t.Errorf("written and read: %v, want %v", got, want)
	}
}

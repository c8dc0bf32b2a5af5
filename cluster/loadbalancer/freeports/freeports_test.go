package freeports

import (
	"context"
	"maps"
	"net"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/internal/testkit"
)

func balancer(name string, port int) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: name, UID: types.UID(name)},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, Ports: []corev1.ServicePort{{Protocol: corev1.ProtocolTCP, Port: int32(port)}},
		},
	}
}

// A node answers for the ports of Services without an address, by what listens there, and as long
// as one asks.
func TestNodeSaysWhichPortsAreFree(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := l.Addr().(*net.TCPAddr).Port
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Annotations: map[string]string{"other": "kept"}}}
	node.Status.Addresses = []corev1.NodeAddress{
		{Type: corev1.NodeHostName, Address: "n"}, {Type: corev1.NodeInternalIP, Address: "127.0.0.1"},
	}
	kube := fake.NewClientset(node)
	watched := testkit.Watched(kube, "services")
	set := &client.Set{Kube: kube, Informers: client.NewInformers(kube)}
	c := New(set, Options{Node: "n", Client: kube})
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
			return maps.Equal(Of(n), want) && (len(want) > 0 || n.Annotations[Annotation] == ""), nil
		})
	}
	given := balancer("given", 81)
	given.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.1"}}
	class, others := "other.example.com/class", balancer("others", 82)
	others.Spec.LoadBalancerClass = &class
	for _, s := range []*corev1.Service{given, others, balancer("taken", port), balancer("web", 1)} {
		if _, err := services.Create(t.Context(), s, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	taken, web := Port{corev1.ProtocolTCP, int32(port)}, Port{corev1.ProtocolTCP, 1}
	want("the ports of those that wait", Answers{taken: true, web: false})
	watched(t)
	if err := services.Delete(t.Context(), "taken", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	want("after one has gone", Answers{web: false})
	s := balancer("web", 1)
	s.Status = given.Status
	if _, err := services.UpdateStatus(t.Context(), s, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	want("when no one asks", Answers{})
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

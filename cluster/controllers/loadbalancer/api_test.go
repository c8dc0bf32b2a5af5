package loadbalancer

import (
	"context"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/controllers/frame"
	"github.com/coracle-project/coracle/cluster/controllers/internal/apitest"
	"github.com/coracle-project/coracle/cluster/loadbalancer"
)

// api is one test's view of the API.
type api struct {
	*testing.T
	*apitest.Server
}

// run runs f and a controller with a pool; without ranges it gives nodes' addresses.
func run(t *testing.T, o Options, ranges []string, f func(api)) {
	t.Helper()
	var err error
	if o.Pool, err = loadbalancer.ParsePool(ranges); err != nil {
		t.Fatal(err)
	}
	make := func(set *client.Set) *frame.Controller { return New(set, o) }
	apitest.Ours(make).As("service-controller").Run(t, func(t *testing.T, s *apitest.Server) { f(api{t, s}) })
}

// Families of Services.
var (
	v4   = []corev1.IPFamily{corev1.IPv4Protocol}
	v6   = []corev1.IPFamily{corev1.IPv6Protocol}
	dual = []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}
)

// balancer is a Service of one family with port 80.
func balancer(name string, families []corev1.IPFamily, change ...func(*corev1.Service)) *corev1.Service {
	policy := corev1.IPFamilyPolicySingleStack
	if len(families) > 1 {
		policy = corev1.IPFamilyPolicyRequireDualStack
	}
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: apitest.Namespace}, Spec: corev1.ServiceSpec{
		Type: corev1.ServiceTypeLoadBalancer, IPFamilies: families, IPFamilyPolicy: &policy,
		Ports: []corev1.ServicePort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80}},
	}}
	for _, f := range change {
		f(s)
	}
	return s
}

func wanting(ip string) func(*corev1.Service) {
	return func(s *corev1.Service) { s.Spec.LoadBalancerIP = ip }
}

func having(ips ...string) func(*corev1.Service) {
	return func(s *corev1.Service) {
		for _, ip := range ips {
			s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: ip})
		}
	}
}

func preferring(s *corev1.Service) {
	*s.Spec.IPFamilyPolicy = corev1.IPFamilyPolicyPreferDualStack
}

func port(number int32) func(*corev1.Service) {
	return func(s *corev1.Service) { s.Spec.Ports[0].Port = number }
}

// add creates Services, a second apart, and lets the controller act on each.
func (a api) add(services ...*corev1.Service) {
	a.Helper()
	for _, s := range services {
		if _, err := a.Kube.CoreV1().Services(s.Namespace).Create(context.Background(), s, metav1.CreateOptions{}); err != nil {
			a.Fatal(err)
		}
		a.Pass(time.Second)
	}
}

func (a api) change(name string, f func(*corev1.Service)) {
	a.Helper()
	all := a.Kube.CoreV1().Services(apitest.Namespace)
	s, err := all.Get(context.Background(), name, metav1.GetOptions{})
	if err == nil {
		f(s)
		_, err = all.Update(context.Background(), s, metav1.UpdateOptions{})
	}
	if err != nil {
		a.Fatal(err)
	}
	a.Settle()
}

func (a api) remove(name string) {
	a.Helper()
	if err := a.Kube.CoreV1().Services(apitest.Namespace).Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil {
		a.Fatal(err)
	}
	a.Settle()
}

// has returns a Service's addresses, separated by spaces.
func (a api) has(name string) string {
	a.Helper()
	s, err := a.Kube.CoreV1().Services(apitest.Namespace).Get(context.Background(), name, metav1.GetOptions{})
	if err != nil {
		a.Fatal(err)
	}
	var ips []string
	for _, ingress := range s.Status.LoadBalancer.Ingress {
		ips = append(ips, ingress.IP)
	}
	return strings.Join(ips, " ")
}

// want says what Services have, as "name" and "address address".
func (a api) want(wants ...string) {
	a.Helper()
	for i := 0; i < len(wants); i += 2 {
		if got := a.has(wants[i]); got != wants[i+1] {
			a.Errorf("%s has %q, want %q", wants[i], got, wants[i+1])
		}
	}
}

// told says that exactly one Event has this reason and text.
func (a api) told(reason, text string) {
	a.Helper()
	a.Pass(2 * time.Second)
	n := 0
	for _, e := range a.Events(a.T) {
		if strings.Contains(e, " "+reason+" ") && strings.Contains(e, text) {
			n++
		}
	}
	if n != 1 {
		a.Errorf("%d Events say %s %q, want 1, of %q", n, reason, text, a.Events(a.T))
	}
}

// node is a node with these addresses.
func (a api) node(name string, ips ...string) {
	a.Helper()
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	for _, ip := range ips {
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: ip})
	}
	if _, err := a.Kube.CoreV1().Nodes().Create(context.Background(), n, metav1.CreateOptions{}); err != nil {
		a.Fatal(err)
	}
	a.Settle()
}

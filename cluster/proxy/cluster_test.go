package proxy

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/proxy/testnet"
)

const (
	address4, address6   = "10.96.0.10", "fd00:96::10"
	balancer4, balancer6 = "203.0.113.7", "2001:db8:7::7"
	tableName            = "coracle-services-test"
)

// testCluster is a node with a proxy, an API and two pods.
type testCluster struct {
	*testnet.Node
	t    testing.TB
	api  *fake.Clientset
	a, b *testnet.Space
	did  chan struct{} // a value for what came into force

	proxy *Proxy // that runs, or ran last
}

// start makes a cluster whose API has what changed returns.
func start(t *testing.T, change func(*Options)) *testCluster {
	t.Helper()
	c := &testCluster{Node: testnet.New(t), t: t, api: fake.NewClientset(), did: make(chan struct{}, 1)}
	c.a, c.b = c.Pod("a"), c.Pod("b")
	for _, pod := range []*testnet.Space{c.a, c.b} {
		pod.Serve("tcp", 8080)
		pod.Serve("udp", 8080)
	}
	c.create(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "here", Labels: map[string]string{corev1.LabelTopologyZone: "east"}}})
	for _, pod := range []*testnet.Space{c.a, c.b} {
		c.create(&corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Namespace: "default", UID: types.UID(pod.Name)},
			Spec:       corev1.PodSpec{NodeName: "here"},
			Status:     corev1.PodStatus{PodIPs: []corev1.PodIP{{IP: pod.IPv4.String()}, {IP: pod.IPv6.String()}}},
		})
	}
	c.run(change)
	<-c.did // a connection that starts without rules never follows them
	return c
}

// run runs a proxy until the function it returns is called, or the test ends.
func (c *testCluster) run(change func(*Options)) (stop func()) {
	c.t.Helper()
	o := Options{
		Table: tableName, NodeName: "here", WatchPods: true,
		NodeIPs:       []netip.Addr{c.IPv4, c.IPv6},
		ServiceRanges: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("fd00:96::/112")},
	}
	if change != nil {
		change(&o)
	}
	ctx, cancel := testContext(c.t)
	informers := client.NewInformers(c.api)
	p, err := New(&client.Set{Kube: c.api, Informers: informers}, o)
	if err != nil {
		c.t.Fatal(err)
	}
	c.proxy = p
	p.inForce = func() {
		select {
		case c.did <- struct{}{}:
		default:
		}
	}
	informers.Start(ctx.Done())
	done := make(chan error, 1)
	go c.Within(func() { done <- p.Run(ctx) })
	ended := false
	stop = func() {
		if ended {
			return
		}
		ended = true
		cancel()
		if err := <-done; err != nil {
			c.t.Error(err)
		}
		informers.Shutdown()
	}
	c.t.Cleanup(stop)
	return stop
}

// until waits for a condition that a change of the API leads to.
func (c *testCluster) until(what string, holds func() bool) {
	c.t.Helper()
	late := time.After(testnet.Patience)
	for !holds() {
		select {
		case <-c.did:
		case <-late:
			c.t.Fatal("did not happen: " + what)
		}
	}
}

func (c *testCluster) answers(s *testnet.Space, network, address, want string) bool {
	got, err := s.Ask(network, address)
	return err == nil && got == want
}

func (c *testCluster) expect(s *testnet.Space, network, address, want string) {
	c.t.Helper()
	c.until(fmt.Sprintf("%s %s from %s answers %q", network, address, s.Name, want), func() bool {
		return c.answers(s, network, address, want)
	})
	c.routes(s, network, address, want)
}

func (c *testCluster) refused(s *testnet.Space, network, address string) {
	c.t.Helper()
	c.until(fmt.Sprintf("%s %s refuses %s", network, address, s.Name), func() bool {
		_, err := s.Ask(network, address)
		return errors.Is(err, unix.ECONNREFUSED)
	})
	c.routes(s, network, address, "refused")
}

func (c *testCluster) unanswered(s *testnet.Space, network, address string) {
	c.t.Helper()
	c.until(fmt.Sprintf("%s %s is silent to %s", network, address, s.Name), func() bool {
		if r, ok := c.route(s, network, address); !ok || r.Dropped == "" {
			return false // the API's change has not come here yet: an answer may only be late
		}
		return s.Unanswered(network, address) == nil
	})
	c.routes(s, network, address, "dropped")
}

// service is one in both families, with a port 80 for TCP and one for UDP.
func service(change func(*corev1.Service)) *corev1.Service {
	both := corev1.IPFamilyPolicyRequireDualStack
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default"},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, ClusterIP: address4, ClusterIPs: []string{address4, address6},
			IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}, IPFamilyPolicy: &both,
			SessionAffinity: corev1.ServiceAffinityNone,
			Ports: []corev1.ServicePort{
				{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80, TargetPort: intstr.FromString("web")},
				{Name: "udp", Protocol: corev1.ProtocolUDP, Port: 80, TargetPort: intstr.FromInt32(8080)},
			},
		},
	}
	if change != nil {
		change(s)
	}
	return s
}

// endpointAt is an endpoint at a pod. The node is where it runs.
func endpointAt(node string, ip netip.Addr) discoveryv1.Endpoint {
	yes, no := true, false
	return discoveryv1.Endpoint{
		Addresses: []string{ip.String()}, NodeName: &node,
		Conditions: discoveryv1.EndpointConditions{Ready: &yes, Serving: &yes, Terminating: &no},
	}
}

// endpoints are slices of both families with what f makes of each pod.
func (c *testCluster) endpoints(f func(pod *testnet.Space, ip netip.Addr) *discoveryv1.Endpoint) []*discoveryv1.EndpointSlice {
	var all []*discoveryv1.EndpointSlice
	for _, family := range []discoveryv1.AddressType{discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6} {
		slice := &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{
				Name: "web-" + strings.ToLower(string(family)), Namespace: "default", Labels: map[string]string{discoveryv1.LabelServiceName: "web"},
			},
			AddressType: family,
		}
		for _, p := range []struct {
			name     string
			protocol corev1.Protocol
		}{{"http", corev1.ProtocolTCP}, {"udp", corev1.ProtocolUDP}, {"sctp", corev1.ProtocolSCTP}} {
			port := int32(8080)
			slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: &p.name, Protocol: &p.protocol, Port: &port})
		}
		for _, pod := range []*testnet.Space{c.a, c.b} {
			ip := pod.IPv4
			if family == discoveryv1.AddressTypeIPv6 {
				ip = pod.IPv6
			}
			if e := f(pod, ip); e != nil {
				slice.Endpoints = append(slice.Endpoints, *e)
			}
		}
		all = append(all, slice)
	}
	return all
}

// only has one pod as an endpoint, on a node.
func (c *testCluster) only(pod *testnet.Space, node string) []*discoveryv1.EndpointSlice {
	return c.endpoints(func(p *testnet.Space, ip netip.Addr) *discoveryv1.Endpoint {
		if p != pod {
			return nil
		}
		e := endpointAt(node, ip)
		return &e
	})
}

// set puts a Service and its endpoints into the API, in place of those before.
func (c *testCluster) set(s *corev1.Service, slices []*discoveryv1.EndpointSlice) {
	c.t.Helper()
	c.create(s)
	for _, slice := range slices {
		c.create(slice)
	}
}

// protocols are those with traffic, in both families.
func (c *testCluster) protocols(f func(network, service, balancer string, ip func(*testnet.Space) string)) {
	v4 := func(s *testnet.Space) string { return s.IPv4.String() }
	v6 := func(s *testnet.Space) string { return s.IPv6.String() }
	f("tcp", address4, balancer4, v4)
	f("udp", address4, balancer4, v4)
	f("tcp", address6, balancer6, v6)
	f("udp", address6, balancer6, v6)
}

func at(address string, port int) string { return net.JoinHostPort(address, fmt.Sprint(port)) }

package loadbalancer_test

import (
	"bufio"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"
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
	controller "github.com/coracle-project/coracle/cluster/controllers/loadbalancer"
	"github.com/coracle-project/coracle/cluster/internal/testkit"
	"github.com/coracle-project/coracle/cluster/loadbalancer"
	"github.com/coracle-project/coracle/cluster/loadbalancer/announce"
	"github.com/coracle-project/coracle/cluster/proxy"
	"github.com/coracle-project/coracle/cluster/proxy/testnet"
)

const sink = "coracle-lb1"

// cluster is a node with two pods, a machine outside on its network, and an API.
type cluster struct {
	*testnet.Node
	t    *testing.T
	api  *fake.Clientset
	pod  *testnet.Space
	pool loadbalancer.Pool
	// watched waits until the parts that were started last are told of Services that go.
	watched func(testing.TB)
}

// newCluster has the parts of a cluster process that Services of type LoadBalancer need, until the
// test ends.
func newCluster(t *testing.T, ranges ...string) (c *cluster, restart func()) {
	t.Helper()
	c = &cluster{Node: testnet.New(t), t: t, api: fake.NewClientset()}
	var err error
	if c.pool, err = loadbalancer.ParsePool(ranges); err != nil {
		t.Fatal(err)
	}
	c.Outside.Within(func() { // it gives up soon
		for _, family := range []string{"ipv4", "ipv6"} {
			if err := os.WriteFile("/proc/sys/net/"+family+"/neigh/eth0/retrans_time_ms", []byte("100"), 0); err != nil {
				t.Error(err)
			}
		}
	})
	c.pod = c.Pod("web")
	c.pod.Serve("tcp", 8080)
	here := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "here"}}
	here.Status.Addresses = []corev1.NodeAddress{
		{Type: corev1.NodeInternalIP, Address: testnet.Node4},
		{Type: corev1.NodeInternalIP, Address: testnet.Node6},
	}
	if _, err := c.api.CoreV1().Nodes().Create(t.Context(), here, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	stop := c.start()
	t.Cleanup(func() { stop() })
	return c, func() { stop(); stop = c.start() }
}

// start starts the parts. What they leave in the kernel stays when they are stopped.
func (c *cluster) start() (stop func()) {
	c.t.Helper()
	c.watched = testkit.Watched(c.api, "services")
	informers := client.NewInformers(c.api)
	set := &client.Set{Kube: c.api, Informers: informers}
	give := controller.New(set, controller.Options{Pool: c.pool})
	speak := loadbalancer.NewSpeaker(set, loadbalancer.SpeakerOptions{Node: "here", Pool: c.pool, Sink: sink})
	route, err := proxy.New(set, proxy.Options{
		Table: "coracle-services-test", NodeName: "here", NodeIPs: []netip.Addr{c.IPv4, c.IPv6},
		ServiceRanges: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("fd00:96::/112")},
	})
	if err != nil {
		c.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	parts := []func(context.Context) error{speak.Run, route.Run, func(ctx context.Context) error { give.Run(ctx); return nil }}
	done := make(chan error, len(parts))
	for _, part := range parts {
		go c.Within(func() { done <- part(ctx) })
	}
	informers.Start(ctx.Done())
	return func() {
		cancel()
		for range parts {
			if err := <-done; err != nil {
				c.t.Error(err)
			}
		}
		informers.Shutdown()
	}
}

// create makes a Service for the pod, in both families.
func (c *cluster) create(name string, change func(*corev1.Service)) {
	c.t.Helper()
	both := corev1.IPFamilyPolicyRequireDualStack
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID(name)},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, ClusterIP: "10.96.0.20", ClusterIPs: []string{"10.96.0.20", "fd00:96::20"},
			IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}, IPFamilyPolicy: &both,
			SessionAffinity: corev1.ServiceAffinityNone, ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyCluster,
			Ports: []corev1.ServicePort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80, TargetPort: intstr.FromInt32(8080)}},
		},
	}
	if change != nil {
		change(s)
	}
	if _, err := c.api.CoreV1().Services("default").Create(c.t.Context(), s, metav1.CreateOptions{}); err != nil {
		c.t.Fatal(err)
	}
	yes, here, web, port, protocol := true, "here", "http", int32(8080), corev1.ProtocolTCP
	for kind, ip := range map[discoveryv1.AddressType]netip.Addr{
		discoveryv1.AddressTypeIPv4: c.pod.IPv4,
		discoveryv1.AddressTypeIPv6: c.pod.IPv6,
	} {
		if _, err := c.api.DiscoveryV1().EndpointSlices("default").Create(c.t.Context(), &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{
				Name: name + strings.ToLower(string(kind)), Namespace: "default", Labels: map[string]string{discoveryv1.LabelServiceName: name},
			},
			AddressType: kind, Ports: []discoveryv1.EndpointPort{{Name: &web, Protocol: &protocol, Port: &port}},
			Endpoints: []discoveryv1.Endpoint{{
				Addresses: []string{ip.String()}, NodeName: &here, Conditions: discoveryv1.EndpointConditions{Ready: &yes, Serving: &yes},
			}},
		}, metav1.CreateOptions{}); err != nil {
			c.t.Fatal(err)
		}
	}
}

// addresses waits until a Service has as many addresses, and returns them.
func (c *cluster) addresses(name string, want int) (all []netip.Addr) {
	c.t.Helper()
	c.until(name+" has its addresses", func() bool {
		s, err := c.api.CoreV1().Services("default").Get(c.t.Context(), name, metav1.GetOptions{})
		if err != nil {
			c.t.Fatal(err)
		}
		all = loadbalancer.Addresses(s)
		return len(all) == want
	})
	return all
}

func (c *cluster) until(what string, holds func() bool) {
	c.t.Helper()
	for deadline := time.Now().Add(testnet.Patience); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			c.t.Fatal("did not happen: " + what)
		}
	}
}

// answers waits until the pod answers a space at port 80 of an address. Connections from elsewhere
// come by way of the node.
func (c *cluster) answers(s *testnet.Space, address netip.Addr) {
	c.t.Helper()
	at := netip.AddrPortFrom(address, 80).String()
	c.until("the pod answers "+s.Name+" at "+at, func() bool {
		got, err := s.Ask("tcp", at)
		return err == nil && strings.HasPrefix(got, "web ")
	})
}

// A machine on the node's network finds the addresses of a Service by ARP and ND and reaches its
// pod, as do the node and pods, the Service's own included. Connections and addresses outlive the
// process. Addresses of the pool that no Service has are not answered.
func TestMachinesOnTheNetworkReachServices(t *testing.T) {
	c, restart := newCluster(t, "192.0.2.100-192.0.2.101", "2001:db8::100-2001:db8::101")
	other := c.Pod("other")
	c.create("web", nil)
	given := c.addresses("web", 2)
	var open []net.Conn
	for _, address := range given {
		for _, from := range []*testnet.Space{c.Outside, &c.Node.Space, other, c.pod} {
			c.answers(from, address)
		}
		conn, err := c.Outside.Dial("tcp", netip.AddrPortFrom(address, 80).String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		open = append(open, conn)
	}
	for _, free := range []string{"192.0.2.101:80", "[2001:db8::101]:80"} {
		if got, err := c.Outside.Ask("tcp", free); err == nil {
			t.Errorf("%s, which no Service has, answers %q", free, got)
		}
	}
	restart()
	for i, conn := range open {
		_ = conn.SetDeadline(time.Now().Add(testnet.Patience))
		if _, err := conn.Write([]byte("still\n")); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(conn)
		for lines.Scan() && lines.Text() != "still" {
		}
		if lines.Err() != nil || lines.Text() != "still" {
			t.Errorf("the connection to %s ended with the process: %v", given[i], lines.Err())
		}
	}
	if again := c.addresses("web", 2); again[0] != given[0] || again[1] != given[1] {
		t.Errorf("after a restart the Service has %v, and had %v", again, given)
	}
	for _, address := range given {
		c.answers(c.Outside, address)
	}
	c.watched(t)
	if err := c.api.CoreV1().Services("default").Delete(t.Context(), "web", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.until("nothing is announced any more", func() bool {
		return c.Run("ip neigh show proxy")+c.Run("ip -6 neigh show proxy") == "" && !strings.Contains(c.Run("ip -o link"), sink)
	})
	c.Outside.Run("ip neigh flush dev eth0")
	for _, address := range given {
		if got, err := c.Outside.Ask("tcp", netip.AddrPortFrom(address, 80).String()); err == nil {
			t.Errorf("%s is free, and answers %q", address, got)
		}
	}
	c.Within(func() {
		if err := announce.Remove(sink); err != nil { // which finds nothing
			t.Error(err)
		}
	})
}

// Without a pool, Services are at the node's addresses.
func TestServicesAtTheNodesAddresses(t *testing.T) {
	c, _ := newCluster(t)
	c.create("web", func(s *corev1.Service) { s.Spec.Ports[0].Port = 8081 })
	if given := c.addresses("web", 2); given[0] != c.IPv4 || given[1] != c.IPv6 {
		t.Errorf("the Service has %v, want the node's addresses %s and %s", given, c.IPv4, c.IPv6)
	}
	for _, at := range []string{net.JoinHostPort(testnet.Node4, "8081"), net.JoinHostPort(testnet.Node6, "8081")} {
		for _, from := range []*testnet.Space{c.Outside, &c.Node.Space, c.pod} {
			c.until("the pod answers "+from.Name+" at "+at, func() bool {
				got, err := from.Ask("tcp", at)
				return err == nil && strings.HasPrefix(got, "web ")
			})
		}
	}
}

// What something on the node listens to is not a Service's to have.
func TestPortsInUse(t *testing.T) {
	n := testnet.New(t)
	n.Serve("tcp4", 8081)
	n.Serve("udp6", 8082)
	n.Within(func() {
		for _, test := range []struct {
			at       string
			protocol corev1.Protocol
			want     bool
			local    bool
		}{
			{testnet.Node4 + ":8081", corev1.ProtocolTCP, true, true},
			{testnet.Node4 + ":8081", corev1.ProtocolUDP, false, true},
			{testnet.Node4 + ":8082", corev1.ProtocolTCP, false, true},
			{"[" + testnet.Node6 + "]:8082", corev1.ProtocolUDP, true, true},
			{"[" + testnet.Node6 + "]:8081", corev1.ProtocolTCP, false, true},
			{"192.0.2.77:8081", corev1.ProtocolTCP, false, false}, // another node's
			{"[2001:db8::77]:8081", corev1.ProtocolUDP, false, false},
			{testnet.Node4 + ":8081", corev1.ProtocolSCTP, false, true},
		} {
			if got, local := loadbalancer.PortBusy(netip.MustParseAddrPort(test.at), test.protocol); got != test.want || local != test.local {
				t.Errorf("%s %s: %v, local %v, want %v, %v", test.protocol, test.at, got, local, test.want, test.local)
			}
		}
	})
}

// A client that comes before a Service has the address is refused at once, and succeeds later. Were
// its packet dropped after connection tracking has taken note of it, the same ports would lead
// nowhere for two minutes.
func TestConnectionsThatComeEarly(t *testing.T) {
	c, _ := newCluster(t, "192.0.2.100-192.0.2.101", "2001:db8::100-2001:db8::101")
	c.create("first", nil) // the proxy's rules are in force, and with them connection tracking
	for _, address := range c.addresses("first", 2) {
		c.answers(c.Outside, address)
	}
	early := []netip.Addr{netip.MustParseAddr("192.0.2.101"), netip.MustParseAddr("2001:db8::101")}
	announced := make(chan error, 2)
	a := announce.New("coracle-lb2", "", slog.Default(), func(_ netip.Addr, _ string, err error) { announced <- err })
	a.Set(early)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go c.Within(func() { done <- a.Run(ctx) })
	for range early {
		if err := <-announced; err != nil {
			t.Fatal(err)
		}
	}
	dial := func(from *testnet.Space, to netip.Addr) (conn net.Conn, err error) {
		from.Within(func() {
			local := &net.TCPAddr{Port: 40000}
			conn, err = (&net.Dialer{LocalAddr: local, Timeout: testnet.Patience}).Dial("tcp", netip.AddrPortFrom(to, 80).String())
		})
		return conn, err
	}
	both := []*testnet.Space{c.Outside, &c.Node.Space}
	for _, address := range early {
		for _, from := range both {
			if _, err := dial(from, address); !errors.Is(err, unix.ECONNREFUSED) {
				t.Errorf("%s, which has no Service, answers %s %v", address, from.Name, err)
			}
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	c.Within(func() {
		if err := announce.Remove("coracle-lb2"); err != nil {
			t.Error(err)
		}
	})
	c.create("second", func(s *corev1.Service) {
		s.Spec.ClusterIP, s.Spec.ClusterIPs = "10.96.0.21", []string{"10.96.0.21", "fd00:96::21"}
	})
	if given := c.addresses("second", 2); given[0] != early[0] || given[1] != early[1] {
		t.Fatalf("the second Service has %v, want %v", given, early)
	}
	for _, address := range early {
		for _, from := range both {
			c.answers(from, address) // it is there
			conn, err := dial(from, address)
			if err != nil {
				t.Errorf("from the ports of the first try, %s finds %s: %v", from.Name, address, err)
				continue
			}
			_ = conn.Close()
		}
	}
}

package proxy

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/coracle-project/coracle/cluster/internal/testkit"
	"github.com/coracle-project/coracle/cluster/proxy/rules"
	"github.com/coracle-project/coracle/cluster/proxy/testnet"
	"github.com/coracle-project/coracle/internal/conntrack"
)

func TestServiceFollowsTheAPI(t *testing.T) {
	c := start(t, nil)
	c.set(service(nil), c.only(c.b, "here"))
	c.protocols(func(network, service, _ string, ip func(*testnet.Space) string) {
		c.expect(c.a, network, at(service, 80), "b "+ip(c.a))
		c.expect(&c.Space, network, at(service, 80), "b "+ip(&c.Space))
		c.expect(c.b, network, at(service, 80), "b "+ip(&c.Space)) // itself
		c.refused(c.a, network, at(service, 81))
	})
	c.set(service(nil), c.only(c.a, "here"))
	c.protocols(func(network, service, _ string, ip func(*testnet.Space) string) {
		c.expect(c.b, network, at(service, 80), "a "+ip(c.b))
	})
	c.set(service(func(s *corev1.Service) { s.Spec.Ports[0].Port = 82 }), c.only(c.a, "here"))
	c.expect(c.b, "tcp", at(address4, 82), "a "+c.b.IPv4.String())
	c.refused(c.b, "tcp", at(address4, 80))
	c.set(service(nil), c.endpoints(func(*testnet.Space, netip.Addr) *discoveryv1.Endpoint { return nil }))
	c.protocols(func(network, service, _ string, _ func(*testnet.Space) string) {
		c.refused(c.a, network, at(service, 80))
	})
	c.set(service(nil), c.only(c.b, "here"))
	c.expect(c.a, "tcp", at(address4, 80), "b "+c.a.IPv4.String())
	if err := c.api.CoreV1().Services("default").Delete(t.Context(), "web", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.protocols(func(network, service, _ string, _ func(*testnet.Space) string) {
		c.refused(c.a, network, at(service, 80))
	})
}

func TestServicesThatAreNotRouted(t *testing.T) {
	c := start(t, nil)
	for what, change := range map[string]func(*corev1.Service){
		"for another proxy": func(s *corev1.Service) {
			s.Labels = map[string]string{"service.kubernetes.io/service-proxy-name": "other"}
		},
		"headless": func(s *corev1.Service) { s.Spec.ClusterIP, s.Spec.ClusterIPs = "None", []string{"None"} },
		"external name": func(s *corev1.Service) {
			s.Spec.Type, s.Spec.ExternalName = corev1.ServiceTypeExternalName, "example.org"
		},
	} {
		c.set(service(nil), c.only(c.b, "here"))
		c.expect(c.a, "tcp", at(address4, 80), "b "+c.a.IPv4.String())
		c.set(service(change), c.only(c.b, "here"))
		c.refused(c.a, "tcp", at(address4, 80))
		t.Log(what)
	}
}

func nodePort(s *corev1.Service) {
	s.Spec.Type = corev1.ServiceTypeLoadBalancer
	for i := range s.Spec.Ports {
		s.Spec.Ports[i].NodePort = 30080 // of each protocol
	}
	s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: balancer4}, {IP: balancer6}}
}

func TestAccessFromOutside(t *testing.T) {
	c := start(t, nil)
	c.set(service(nodePort), c.only(c.b, "here"))
	c.protocols(func(network, _, balancer string, ip func(*testnet.Space) string) {
		for _, s := range []*testnet.Space{c.a, &c.Space, c.Outside} {
			c.expect(s, network, at(ip(&c.Space), 30080), "b "+ip(&c.Space))
			c.expect(s, network, at(balancer, 80), "b "+ip(&c.Space))
		}
	})
	c.set(service(func(s *corev1.Service) {
		nodePort(s)
		s.Spec.LoadBalancerSourceRanges = []string{testnet.Outside4 + "/32", testnet.Outside6 + "/128"}
	}), c.only(c.b, "here"))
	c.protocols(func(network, _, balancer string, ip func(*testnet.Space) string) {
		c.unanswered(c.a, network, at(balancer, 80))
		c.expect(c.Outside, network, at(balancer, 80), "b "+ip(&c.Space))
		c.expect(c.a, network, at(ip(&c.Space), 30080), "b "+ip(&c.Space))
	})
}

// A node's address is for the ports that a Service was given: when a user changes these, the node's
// own servers are still reached, before any controller has looked at the Service.
func TestPortsThatWereNotGiven(t *testing.T) {
	c := start(t, nil)
	c.Serve("tcp", 22)
	with := func(port int32, given ...corev1.PortStatus) *corev1.Service {
		return service(func(s *corev1.Service) {
			nodePort(s)
			s.Spec.Ports[0].Port = port
			s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: testnet.Node4, Ports: given}}
		})
	}
	http, udp := corev1.PortStatus{Port: 80, Protocol: corev1.ProtocolTCP}, corev1.PortStatus{Port: 80, Protocol: corev1.ProtocolUDP}
	c.set(with(80, http, udp), c.only(c.b, "here"))
	c.expect(c.Outside, "tcp", at(testnet.Node4, 80), "b "+testnet.Node4)
	own := "node " + testnet.Outside4
	c.until("the node's own server answers", func() bool { return c.answers(c.Outside, "tcp", at(testnet.Node4, 22), own) })

	c.set(with(22, http, udp), nil)
	c.expect(c.a, "tcp", at(address4, 22), "b "+c.a.IPv4.String()) // the change is in force
	if got, err := c.Outside.Ask("tcp", at(testnet.Node4, 22)); err != nil || got != own {
		t.Errorf("a Service took over a port of the node: %q, %v", got, err)
	}
	c.set(with(22), nil) // positive control: without ports, the address is for all of them
	c.expect(c.Outside, "tcp", at(testnet.Node4, 22), "b "+testnet.Node4)
}

func TestTrafficPolicies(t *testing.T) {
	c := start(t, nil)
	external := func(s *corev1.Service) {
		nodePort(s)
		s.Spec.ExternalTrafficPolicy, s.Spec.HealthCheckNodePort = corev1.ServiceExternalTrafficPolicyLocal, 30999
	}
	health := func() string {
		var answer string
		c.Outside.Within(func() {
			conn, err := net.DialTimeout("tcp", at(testnet.Node4, 30999), testnet.Patience)
			if err != nil {
				answer = err.Error()
				return
			}
			client := http.Client{Transport: &http.Transport{
				DisableKeepAlives: true, DialContext: func(context.Context, string, string) (net.Conn, error) { return conn, nil },
			}}
			r, err := client.Get("http://" + at(testnet.Node4, 30999))
			if err != nil {
				answer = err.Error()
				return
			}
			defer r.Body.Close()
			answer = fmt.Sprint(r.StatusCode, r.Header.Get("X-Load-Balancing-Endpoint-Weight"))
		})
		return answer
	}
	c.set(service(external), c.only(c.b, "here"))
	c.protocols(func(network, _, balancer string, ip func(*testnet.Space) string) {
		c.expect(c.Outside, network, at(ip(&c.Space), 30080), "b "+ip(c.Outside))
		c.expect(c.Outside, network, at(balancer, 80), "b "+ip(c.Outside))
		c.expect(c.a, network, at(balancer, 80), "b "+ip(c.a))
	})
	c.until("health with an endpoint", func() bool { return health() == "2001" })
	c.set(service(external), c.only(c.b, "elsewhere"))
	c.protocols(func(network, service, balancer string, ip func(*testnet.Space) string) {
		c.unanswered(c.Outside, network, at(ip(&c.Space), 30080))
		c.unanswered(c.Outside, network, at(balancer, 80))
		c.expect(c.a, network, at(balancer, 80), "b "+ip(c.a)) // as from anywhere in the cluster
		c.expect(c.a, network, at(service, 80), "b "+ip(c.a))
	})
	c.until("health without an endpoint", func() bool { return health() == "5030" })
	internal := func(s *corev1.Service) {
		policy := corev1.ServiceInternalTrafficPolicyLocal
		s.Spec.InternalTrafficPolicy = &policy
	}
	c.set(service(internal), c.only(c.b, "elsewhere"))
	c.protocols(func(network, service, _ string, _ func(*testnet.Space) string) {
		c.unanswered(c.a, network, at(service, 80))
	})
	c.until("no health", func() bool { return strings.Contains(health(), "refused") })
	c.set(service(internal), c.only(c.b, "here"))
	c.protocols(func(network, service, _ string, ip func(*testnet.Space) string) {
		c.expect(c.a, network, at(service, 80), "b "+ip(c.a))
	})
}

func TestWhichEndpoints(t *testing.T) {
	c := start(t, nil)
	set := func(f func(e *discoveryv1.Endpoint, pod *testnet.Space)) {
		c.set(service(nil), c.endpoints(func(pod *testnet.Space, ip netip.Addr) *discoveryv1.Endpoint {
			e := endpointAt("here", ip)
			f(&e, pod)
			return &e
		}))
	}
	all := func(pod string) {
		t.Helper()
		for range 20 { // that the other of two is not seen has a chance of 1 to 10^6
			c.expect(&c.Space, "tcp", at(address4, 80), pod+" "+testnet.Node4)
			c.expect(&c.Space, "udp", at(address6, 80), pod+" "+testnet.Node6)
		}
	}
	yes, no := true, false
	set(func(e *discoveryv1.Endpoint, pod *testnet.Space) { e.Conditions.Ready = new(pod == c.a) })
	c.expect(&c.Space, "tcp", at(address4, 80), "a "+testnet.Node4)
	c.expect(&c.Space, "udp", at(address6, 80), "a "+testnet.Node6)
	all("a")
	set(func(e *discoveryv1.Endpoint, pod *testnet.Space) { // of those that end, one still serves
		e.Conditions = discoveryv1.EndpointConditions{Ready: &no, Serving: new(pod == c.b), Terminating: &yes}
	})
	c.expect(&c.Space, "tcp", at(address4, 80), "b "+testnet.Node4)
	c.expect(&c.Space, "udp", at(address6, 80), "b "+testnet.Node6)
	all("b")
	zones := map[*testnet.Space]string{c.a: "east", c.b: "west"}
	set(func(e *discoveryv1.Endpoint, pod *testnet.Space) {
		e.Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: zones[pod]}}}
	})
	c.expect(&c.Space, "tcp", at(address4, 80), "a "+testnet.Node4)
	c.expect(&c.Space, "udp", at(address6, 80), "a "+testnet.Node6)
	all("a")
	moved := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "here", Labels: map[string]string{corev1.LabelTopologyZone: "west"}}}
	if _, err := c.api.CoreV1().Nodes().Update(t.Context(), moved, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	c.expect(&c.Space, "tcp", at(address4, 80), "b "+testnet.Node4)
	all("b")
	nodes := map[*testnet.Space]string{c.a: "here", c.b: "elsewhere"}
	set(func(e *discoveryv1.Endpoint, pod *testnet.Space) {
		e.Hints = &discoveryv1.EndpointHints{ForNodes: []discoveryv1.ForNode{{Name: nodes[pod]}}}
	})
	c.expect(&c.Space, "tcp", at(address4, 80), "a "+testnet.Node4)
	c.expect(&c.Space, "udp", at(address6, 80), "a "+testnet.Node6)
	all("a")
}

// A Service whose endpoint is the node's loopback would lead to what listens only there.
func TestEndpointsAtTheNodeItselfAreLeftOut(t *testing.T) {
	c := start(t, nil)
	c.Space.Serve("tcp", 8080)
	for _, ip := range []string{"127.0.0.1", "169.254.1.1", "224.0.0.1", "0.0.0.0"} {
		c.set(service(nil), c.only(c.b, "here"))
		c.expect(&c.Space, "tcp", at(address4, 80), "b "+testnet.Node4)
		slices := c.only(c.b, "here")
		slices[0].Endpoints[0].Addresses[0] = ip
		c.set(service(nil), slices)
		c.refused(&c.Space, "tcp", at(address4, 80))
	}
}

// What the node holds for its pods in the network of Services' addresses, such as an API server
// that is bound to loopback, is not reached from outside by a Service with a node port that leads
// there. Such a Service that leads to a pod is.
func TestHeldAddressesStayInside(t *testing.T) {
	c := start(t, nil)
	const held = "10.96.0.1"
	c.Run("ip addr add " + held + "/32 dev lo")
	c.Space.Serve("tcp", 8080)
	expose := service(func(s *corev1.Service) {
		s.Spec.Type = corev1.ServiceTypeNodePort
		s.Spec.Ports[0].NodePort = 30080
	})
	c.set(expose, c.only(c.b, "here"))
	c.expect(c.Outside, "tcp", at(testnet.Node4, 30080), "b "+testnet.Node4)
	slices := c.only(c.b, "here")
	slices[0].Endpoints[0].Addresses[0] = held
	c.set(expose, slices)
	c.refused(c.Outside, "tcp", at(testnet.Node4, 30080))
	if got, err := c.a.Ask("tcp", at(address4, 80)); err != nil {
		t.Errorf("from a pod by the cluster address: %q, %v", got, err)
	}
	// Regression: one that ends, of this node, was not seen when another node had one that is ready.
	onlyHere := expose.DeepCopy()
	onlyHere.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	slices = c.only(c.b, "here")
	c.set(onlyHere, slices)
	c.expect(c.Outside, "tcp", at(testnet.Node4, 30080), "b "+testnet.Outside4)
	ends, away := slices[0].Endpoints[0], endpointAt("elsewhere", c.a.IPv4)
	ends.Addresses = []string{held}
	ends.Conditions.Ready, ends.Conditions.Terminating = ptr.To(false), ptr.To(true)
	slices[0].Endpoints = []discoveryv1.Endpoint{ends, away}
	c.set(onlyHere, slices)
	c.refused(c.Outside, "tcp", at(testnet.Node4, 30080))
}

// Regression: the address of a pod that was deleted and made again, between two looks of the
// informer, stayed one of the node's pods for ever.
func TestPodThatIsMadeAgainUnseen(t *testing.T) {
	p := &Proxy{}
	p.NodeName, p.pods.changed = "here", rules.Pods{}
	h := p.podHandler()
	pod := func(uid types.UID, node, ip string) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "web-0", UID: uid}, Spec: corev1.PodSpec{NodeName: node},
			Status: corev1.PodStatus{PodIPs: []corev1.PodIP{{IP: ip}}},
		}
	}
	one, two, three := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("10.0.0.3")
	before := pod("first", "here", one.String())
	h.OnAdd(before, true)
	for _, step := range []struct {
		what string
		now  *corev1.Pod
		want rules.Pods
	}{
		{"on this node", pod("second", "here", two.String()), rules.Pods{one: false, two: true}},
		{"on another node", pod("third", "elsewhere", three.String()), rules.Pods{two: false}},
	} {
		p.pods.take()
		h.OnUpdate(before, step.now)
		if got := p.pods.take(); !maps.Equal(got, step.want) {
			t.Errorf("made again %s: %v, want %v", step.what, got, step.want)
		}
		before = step.now
	}
}

func TestExternalIPs(t *testing.T) {
	with := func(s *corev1.Service) { s.Spec.ExternalIPs = []string{testnet.Outside4} }
	c := start(t, nil)
	c.Outside.Serve("tcp", 80)
	c.set(service(with), c.only(c.b, "here"))
	c.expect(c.a, "tcp", at(address4, 80), "b "+c.a.IPv4.String())
	if got, err := c.Space.Ask("tcp", at(testnet.Outside4, 80)); err != nil || got != "outside "+testnet.Node4 {
		t.Errorf("a Service took over an address: %q, %v", got, err)
	}
	allowed := start(t, func(o *Options) { o.ExternalIPs = true })
	allowed.Outside.Serve("tcp", 80)
	allowed.set(service(with), allowed.only(allowed.b, "here"))
	allowed.expect(&allowed.Space, "tcp", at(testnet.Outside4, 80), "b "+testnet.Node4)
}

// The flow of a client that goes on sending from one port would stay with the old endpoint forever.
func TestFlowsFollowTheirService(t *testing.T) {
	c := start(t, nil)
	c.set(service(nil), c.only(c.a, "here"))
	c.expect(&c.Space, "udp", at(address4, 80), "a "+testnet.Node4)
	conn, err := c.Dial("udp", at(address4, 80))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ask := func() string {
		buf := make([]byte, 100)
		for late := time.Now().Add(testnet.Patience); ; {
			_ = conn.SetDeadline(time.Now().Add(testnet.Silence))
			if _, err := conn.Write([]byte("x")); err != nil {
				return err.Error()
			}
			n, err := conn.Read(buf)
			// An answer that is on its way while the flow is forgotten is lost.
			if errors.Is(err, os.ErrDeadlineExceeded) && time.Now().Before(late) {
				continue
			}
			if err != nil {
				return err.Error()
			}
			return string(buf[:n])
		}
	}
	if got := ask(); got != "a "+testnet.Node4 {
		t.Fatal(got)
	}
	c.set(service(nil), c.only(c.b, "here"))
	c.until("the flow goes to the other endpoint", func() bool { return ask() == "b "+testnet.Node4 })
}

func TestFlushedRulesetComesBack(t *testing.T) {
	c := start(t, nil)
	c.set(service(nil), c.only(c.b, "here"))
	c.expect(c.a, "tcp", at(address4, 80), "b "+c.a.IPv4.String())
	conn, err := c.a.Dial("tcp", at(address4, 80))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	exchange := func(send, want string) {
		t.Helper()
		if _, err := io.WriteString(conn, send); err != nil {
			t.Error(err)
		}
		got := make([]byte, len(want))
		if _, err := io.ReadFull(conn, got); err != nil || string(got) != want {
			t.Fatalf("an established connection: %q, %v", got, err)
		}
	}
	exchange("", "b "+c.a.IPv4.String()+"\n")
	// What is on its way without the rules is not translated, and the answer to it ends the
	// connection: have everything acknowledged.
	settle(t, conn)
	var times []time.Duration
	for range 3 {
		c.Run("nft flush ruleset")
		flushed := time.Now()
		for !strings.Contains(c.Run("nft list ruleset"), "chain postrouting") { // the last one of the transaction
			if time.Since(flushed) > testnet.Patience {
				t.Fatal("not repaired")
			}
		}
		times = append(times, time.Since(flushed))
		c.expect(c.a, "tcp", at(address4, 80), "b "+c.a.IPv4.String())
	}
	exchange("x", "x")
	if slices.Min(times) > time.Second { // a busy machine may hold up one, with the runs of nft
		t.Errorf("repaired after %v, none within a second", times)
	}
}

// settle sends the acknowledgement that is due at once, not after up to 40 ms.
func settle(t *testing.T, conn net.Conn) {
	t.Helper()
	raw, err := conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var failed error
	err = raw.Control(func(fd uintptr) { failed = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_QUICKACK, 1) })
	if err = errors.Join(err, failed); err != nil {
		t.Fatal(err)
	}
}

func TestRestartOfTheProxy(t *testing.T) {
	c := start(t, nil)
	asked := c.proxy
	first := c.run(func(o *Options) { o.Table = "coracle-services-second" }) // two clusters on a node
	c.proxy = asked
	c.set(service(nil), c.only(c.b, "here"))
	c.expect(c.a, "tcp", at(address4, 80), "b "+c.a.IPv4.String())
	c.until("the other proxy has rules, too", func() bool { return strings.Contains(c.Run("nft list tables"), "coracle-services-second") })
	first()
	if out := c.Run("nft list tables"); !strings.Contains(out, "coracle-services-second") {
		t.Errorf("the rules ended with the proxy:\n%s", out)
	}
	c.Within(func() {
		if err := Cleanup("coracle-services-second"); err != nil {
			t.Error(err)
		}
		if err := Cleanup("coracle-services-second"); err != nil { // nothing to do
			t.Error(err)
		}
	})
	if out := c.Run("nft list tables"); strings.Contains(out, "coracle-services-second") || !strings.Contains(out, tableName) {
		t.Errorf("tables:\n%s", out)
	}
}

// dialFrom connects to a Service from a port of the node's.
func (c *testCluster) dialFrom(port int, address string, limit time.Duration) (answer string, err error) {
	c.Within(func() {
		d := net.Dialer{LocalAddr: &net.TCPAddr{Port: port}, Timeout: limit}
		conn, e := d.Dial("tcp", address)
		if err = e; e != nil {
			return
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(testnet.Patience))
		answer, err = bufio.NewReader(conn).ReadString('\n')
	})
	return strings.TrimSpace(answer), err
}

// The connection tracker remembers for two minutes where a connection went that nothing answered:
// another one from the same port went to the same endpoint, though it was gone.
func TestConnectionsFollowTheirService(t *testing.T) {
	const nodePort, first = 30080, 20000
	c := start(t, nil)
	both := service(func(s *corev1.Service) { s.Spec.Type, s.Spec.Ports[0].NodePort = corev1.ServiceTypeNodePort, nodePort })
	c.set(both, c.only(c.a, "here"))
	c.expect(&c.Space, "tcp", at(address4, 80), "a "+testnet.Node4)
	c.expect(&c.Space, "tcp", at(address6, 80), "a "+testnet.Node6)
	established, err := c.Dial("tcp", at(address4, 80))
	if err != nil {
		t.Fatal(err)
	}
	defer established.Close()
	// Pod a does not answer any more.
	c.a.Run("ip route add blackhole " + testnet.Node4 + "/32")
	c.a.Run("ip -6 route add blackhole " + testnet.Node6 + "/128")
	addresses := []string{at(address4, 80), at(address6, 80), at(testnet.Node4, nodePort), at(testnet.Node6, nodePort)}
	for i, address := range addresses {
		if answer, err := c.dialFrom(first+i, address, testnet.Silence); !os.IsTimeout(err) {
			t.Fatalf("%s: pod a says %q, %v", address, answer, err)
		}
	}
	// One that is being tried meanwhile.
	type result struct {
		answer string
		err    error
	}
	trying := make(chan result)
	go func() {
		answer, err := c.dialFrom(first+len(addresses), addresses[0], testnet.Patience)
		trying <- result{answer, err}
	}()
	testkit.Eventually(t.Context(), t, "it is tried", func() (bool, error) { return c.connections(first+len(addresses)) > 0, nil })

	c.set(both, c.only(c.b, "here"))
	for i, address := range addresses {
		answer, err := c.dialFrom(first+i, address, testnet.Patience)
		if err != nil || !strings.HasPrefix(answer, "b ") {
			t.Errorf("%s: %q, %v", address, answer, err)
		}
	}
	if r := <-trying; r.err != nil || !strings.HasPrefix(r.answer, "b ") {
		t.Errorf("the connection that was being tried: %q, %v", r.answer, r.err)
	}
	if n := c.connections(established.LocalAddr().(*net.TCPAddr).Port); n != 1 {
		t.Errorf("%d entries of the established connection", n)
	}
}

// connections is how many entries the connection tracker has of a port of the node's.
func (c *testCluster) connections(port int) (n int) {
	c.t.Helper()
	c.Within(func() {
		tracker, err := conntrack.Open()
		if err != nil {
			c.t.Error(err)
			return
		}
		defer tracker.Close()
		err = tracker.List(func(e *conntrack.Entry) bool {
			if e.Original.Source.Port() == uint16(port) {
				n++
			}
			return true
		})
		if err != nil {
			c.t.Error(err)
		}
	})
	return n
}

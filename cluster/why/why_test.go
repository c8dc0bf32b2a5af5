package why

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/record"
	upstream "k8s.io/kubernetes/pkg/kubelet/network/dns"
	"k8s.io/utils/ptr"

	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/dns"
	"github.com/coracle-project/coracle/cluster/proxy"
)

func pod(namespace, name, ip string, ports ...corev1.ContainerPort) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(namespace + name)},
		Spec:       corev1.PodSpec{NodeName: "here", DNSPolicy: corev1.DNSClusterFirst, Containers: []corev1.Container{{Ports: ports}}},
	}
	if ip != "" {
		p.Status.PodIPs = []corev1.PodIP{{IP: ip}}
	}
	return p
}

func service(name, ip string, change func(*corev1.Service)) *corev1.Service {
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, ClusterIP: ip, ClusterIPs: []string{ip},
			Ports: []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}},
		},
	}
	if change != nil {
		change(s)
	}
	return s
}

func slice(service string, endpoints ...discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "shop", Name: service + "-1", Labels: map[string]string{discoveryv1.LabelServiceName: service}},
		AddressType: discoveryv1.AddressTypeIPv4, Endpoints: endpoints,
		Ports: []discoveryv1.EndpointPort{{Name: ptr.To("http"), Port: ptr.To[int32](8080), Protocol: ptr.To(corev1.ProtocolTCP)}},
	}
}

func endpoint(ip string, ready bool) discoveryv1.Endpoint {
	return discoveryv1.Endpoint{Addresses: []string{ip}, NodeName: ptr.To("here"), Conditions: discoveryv1.EndpointConditions{Ready: &ready}}
}

// newTestAsker answers from an API in memory, by the real proxy and DNS, which route and listen
// nowhere.
func newTestAsker(t *testing.T) *Asker {
	t.Helper()
	http := corev1.ContainerPort{Name: "http", ContainerPort: 8080, Protocol: corev1.ProtocolTCP}
	headless := func(s *corev1.Service) { s.Labels = map[string]string{corev1.IsHeadlessService: ""} }
	alias := func(of string) func(*corev1.Service) {
		return func(s *corev1.Service) {
			s.Spec = corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: of}
		}
	}
	far := pod("shop", "far", "10.86.0.2")
	far.Spec.NodeName = "there"
	objects := []runtime.Object{
		&corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "here"},
			Status:     corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.10"}}},
		},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "other"}},
		pod("shop", "cart", "10.85.0.2"), pod("shop", "web-1", "10.85.0.3", http), pod("shop", "web-2", "10.85.0.4", http),
		pod("shop", "web-3", "10.85.0.5", http),
		far, pod("shop", "new", ""), pod("other", "tool", "10.85.0.9"),
		service("web", "10.96.0.20", nil), slice("web", endpoint("10.85.0.3", true), endpoint("10.85.0.4", true), endpoint("10.85.0.5", false)),
		service("empty", "10.96.0.21", nil), slice("empty"),
		service("db", corev1.ClusterIPNone, headless), slice("db", endpoint("10.85.0.3", true), endpoint("10.85.0.5", false)),
		service("away", "", alias("www.example.org")),
		service("near", "", alias("web.shop.svc.cluster.local")), service("nearer", "", alias("near.shop.svc.cluster.local")),
		service("loop", "", alias("loop.shop.svc.cluster.local")), service("short", "", alias("web")),
		service("sticky", "10.96.0.22", func(s *corev1.Service) {
			s.Spec.SessionAffinity, s.Spec.SessionAffinityConfig = corev1.ServiceAffinityClientIP,
				&corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: ptr.To[int32](60)}}
		}), slice("sticky", endpoint("10.85.0.3", true)),
	}
	// Its slice must not be taken by the proxy, as the controller marks it.
	objects[slices.IndexFunc(objects, func(o runtime.Object) bool {
		s, ok := o.(*discoveryv1.EndpointSlice)
		return ok && s.Name == "db-1"
	})].(*discoveryv1.EndpointSlice).Labels[corev1.IsHeadlessService] = ""
	api := fake.NewClientset(objects...)
	set := &client.Set{Kube: api, Informers: client.NewInformers(api)}
	services := []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}
	routes, err := proxy.New(set, proxy.Options{Table: "none", NodeName: "here", ServiceRanges: services, WatchPods: true})
	if err != nil {
		t.Fatal(err)
	}
	names, err := dns.New(set, dns.Options{
		Addresses: []netip.Addr{netip.MustParseAddr("10.96.0.10")}, ServiceNets: services,
		ResolvConf: "/dev/null",
	})
	if err != nil {
		t.Fatal(err)
	}
	core := set.Informers.Core().V1()
	a := &Asker{
		Pods: core.Pods().Lister(), Nodes: core.Nodes().Lister(), Services: core.Services().Lister(),
		Slices: set.Informers.Discovery().V1().EndpointSlices().Lister(),
		Routes: routes, Names: names, Node: "here", Domain: "cluster.local",
		Local: func(netip.Addr) bool { return false }, ServiceRanges: services,
		ClusterDNS: []netip.Addr{netip.MustParseAddr("10.96.0.10")}, PodDNS: podDNS(t, "nameserver 192.0.2.53\n").GetPodDNS,
		Elsewhere: func(_ context.Context, name string) ([]netip.Addr, error) {
			if strings.TrimSuffix(name, ".") != "www.example.org" {
				return nil, errors.New("no such host")
			}
			return []netip.Addr{netip.MustParseAddr("203.0.113.5")}, nil
		},
	}
	ctx, cancel := context.WithCancel(context.Background())
	set.Informers.Start(ctx.Done())
	t.Cleanup(func() { cancel(); set.Informers.Shutdown() })
	for kind, synced := range set.Informers.WaitForCacheSync(t.Context().Done()) {
		if !synced {
			t.Fatalf("%v has not synced", kind)
		}
	}
	return a
}

// podDNS is what the kubelet computes pods' resolv.conf with, on a node with this one.
func podDNS(t *testing.T, node string) *upstream.Configurer {
	t.Helper()
	path := filepath.Join(t.TempDir(), "resolv.conf")
	if err := os.WriteFile(path, []byte(node), 0o600); err != nil {
		t.Fatal(err)
	}
	return upstream.NewConfigurer(&record.FakeRecorder{}, &corev1.ObjectReference{}, nil, []net.IP{net.ParseIP("10.96.0.10")}, "cluster.local",
		path)
}

// said is an answer in short: each connection with its verdict, its Service and the endpoints,
// those not used with reasons.
func said(answer *Answer) string {
	var all []string
	for _, c := range answer.Connections {
		one := fmt.Sprintf("%s/%s %s", c.Destination, c.Protocol, c.Verdict)
		if c.Because != "" {
			one += " (" + c.Because + ")"
		}
		if c.Service != nil {
			one += fmt.Sprintf(" by %s:%s, %s", c.Service.Name, c.Service.Port, c.Service.Way)
		}
		for _, e := range c.Endpoints {
			one += " " + e.Address.String() + "=" + e.Pod
			if !e.Used {
				one += " (" + e.Because + ")"
			}
		}
		all = append(all, one)
	}
	return strings.Join(append(all, answer.Notes...), "\n")
}

func TestWhy(t *testing.T) {
	a := newTestAsker(t)
	const web = "10.96.0.20:80/TCP reached by shop/web:http, cluster address 10.85.0.3:8080=shop/web-1 10.85.0.4:8080=shop/web-2 " +
		"10.85.0.5:8080=shop/web-3 (it is not ready)"
	const alias = "www.example.org. was resolved by this node's name servers"
	for _, tc := range []struct{ from, to, want string }{
		{"pod/cart", "svc/web", web},
		{"shop/cart", "svc/shop/web:80", web},
		{"pod/shop/cart", "service/web:http", web},
		{"10.85.0.2", "10.96.0.20:80", web},
		{"198.51.100.7", "10.96.0.20:80", web},
		{"other/tool", "shop/web:80", web}, // no pod has that name
		{"pod/cart", "web", web},
		{"pod/cart", "WEB:80", web},
		{"pod/cart", "web.shop", web},
		{"other/tool", "web.shop:80", web},
		{"other/tool", "web.shop.svc.cluster.local.", web},
		{"pod/cart", "svc/web:81", "10.96.0.20:81/TCP refused (no Service has this address and port)"},
		{"pod/cart", "svc/web:80/udp", "10.96.0.20:80/UDP refused (no Service has this address and port)"},
		{"pod/cart", "10.96.7.7:80", "10.96.7.7:80/TCP refused (no Service has this address and port)"},
		{"pod/cart", "svc/empty", "10.96.0.21:80/TCP refused (it has no endpoint that is ready) by shop/empty:http, cluster address"},
		{"pod/cart", "svc/sticky", "10.96.0.22:80/TCP reached by shop/sticky:http, cluster address 10.85.0.3:8080=shop/web-1"},
		{"pod/cart", "pod/web-1", "10.85.0.3:8080/TCP reached 10.85.0.3:8080=shop/web-1"},
		{"pod/cart", "shop/web-1:http", "10.85.0.3:8080/TCP reached 10.85.0.3:8080=shop/web-1"},
		{"pod/web-1", "pod/cart:9000/udp", "10.85.0.2:9000/UDP reached 10.85.0.2:9000=shop/cart"},
		{"pod/cart", "10.85.0.3:8080", "10.85.0.3:8080/TCP reached 10.85.0.3:8080=shop/web-1"},
		{"pod/cart", "203.0.113.5:443", "203.0.113.5:443/TCP reached 203.0.113.5:443="},
		{"node/here", "svc/sticky", "10.96.0.22:80/TCP reached by shop/sticky:http, cluster address 10.85.0.3:8080=shop/web-1"},
		{
			"pod/cart", "svc/db",
			"10.85.0.3:8080/TCP reached 10.85.0.3:8080=shop/web-1\nService shop/db is headless: clients connect to its endpoints themselves",
		},
		{
			"pod/cart", "svc/db:9",
			"10.85.0.3:9/TCP reached 10.85.0.3:9=shop/web-1\nService shop/db is headless: clients connect to its endpoints themselves",
		},
		{"pod/cart", "db:8080", "10.85.0.3:8080/TCP reached 10.85.0.3:8080=shop/web-1"},
		{"pod/cart", "svc/away:443", "203.0.113.5:443/TCP reached 203.0.113.5:443=\nService shop/away is another name of www.example.org\n" +
			alias},
		{"pod/cart", "svc/near", web + "\nService shop/near is another name of web.shop.svc.cluster.local"},
		{"pod/cart", "near", web + "\nnear.shop.svc.cluster.local. is another name of web.shop.svc.cluster.local."},
		{
			"pod/cart", "svc/nearer:http",
			web +
				"\nService shop/nearer is another name of near.shop.svc.cluster.local\nnear.shop.svc.cluster.local. is another name of " +
				"web.shop.svc.cluster.local.",
		},
		{
			"pod/cart", "away:443",
			"203.0.113.5:443/TCP reached 203.0.113.5:443=\naway.shop.svc.cluster.local. is another name of www.example.org.\n" + alias,
		},
	} {
		t.Run(tc.from+" "+tc.to, func(t *testing.T) {
			answer, err := a.Why(t.Context(), Question{Namespace: "shop", Source: tc.from, Destination: tc.to})
			if err != nil {
				t.Fatal(err)
			}
			answer.Notes = slices.DeleteFunc(answer.Notes, func(n string) bool { return strings.HasPrefix(n, "another program enforces") })
			if got := said(answer); got != tc.want {
				t.Errorf("%s\nwant %s", got, tc.want)
			}
		})
	}
}

func TestBadQuestions(t *testing.T) {
	a := newTestAsker(t)
	for _, tc := range []struct{ from, to, want string }{
		{"svc/web", "svc/web", `source "svc/web": a Service opens no connections`},
		{"pod/none", "svc/web", "there is no pod shop/none; -n names another namespace"},
		{"pod/new", "svc/web", "pod shop/new has no address yet"},
		{"a/b/c/d", "svc/web", "it is pod/NAME, NAMESPACE/NAME, node/NAME or an IP address"},
		{"", "svc/web", "it is pod/NAME"},
		{"node/none", "svc/web", "there is no node none"},
		{"pod/cart", "", "it is pod/NAME, svc/NAME"},
		{"pod/cart", "svc/none", "there is no Service shop/none"},
		{"pod/cart", "other/none", "there is no pod and no Service other/none"},
		{"pod/cart", "pod/new:80", "pod shop/new has no address yet"},
		{"pod/cart", "svc/web:nope", "Service shop/web has no port nope"},
		{"pod/cart", "svc/web:70000", `"70000" is no port from 1 to 65535`},
		{"pod/cart", "svc/web:0", `"0" is no port`},
		{"pod/cart", "svc/web:80/icmp", `"icmp" is none of tcp, udp and sctp`},
		{"pod/cart", "203.0.113.5", "name a port by its number, such as 203.0.113.5:80"},
		{"pod/cart", "pod/cart", "name a port by its number, such as pod/cart:80"},
		{
			"pod/cart", "nowhere:80",
			"the name does not exist: tried nowhere.shop.svc.cluster.local., nowhere.svc.cluster.local., nowhere.cluster.local., nowhere.",
		},
		{"node/here", "web:80", "the source does not ask the cluster's DNS"},
		{"pod/cart", "[fd00::1]:80", "pod/cart has no address of the family of [fd00::1]:80"},
		{"pod/cart", "loop", "resolve loop.shop.svc.cluster.local.: more than 8 Services of type ExternalName lead to each other"},
		{"pod/cart", "svc/loop", "more than 8 Services of type ExternalName"},
		{"pod/cart", "svc/short", "the name does not exist: tried web.;"}, // as it is, without the domains that are searched
		{"pod/cart", "node/here:80", "name the node's address"},
	} {
		if answer, err := a.Why(t.Context(), Question{Namespace: "shop", Source: tc.from, Destination: tc.to}); err == nil ||
			!strings.Contains(err.Error(), tc.want) {
			t.Errorf("%q to %q: %+v, %v, want %q", tc.from, tc.to, answer, err, tc.want)
		}
	}
}

// denies is a policy that denies some addresses.
type denies []netip.Addr

func (d denies) Decide(_, destination netip.Addr, protocol byte, port uint16) PolicyDecision {
	yes := !slices.Contains(d, destination) && protocol == unix.IPPROTO_TCP && port == 8080
	return PolicyDecision{Allowed: yes, Egress: Direction{Allowed: true}, Ingress: Direction{Allowed: yes, Selecting: []string{"shop/strict"}}}
}

// What is not this process's business is said.
func TestOtherPrograms(t *testing.T) {
	a := newTestAsker(t)
	a.Routes = nil
	answer, err := a.Why(t.Context(), Question{Namespace: "shop", Source: "pod/cart", Destination: "svc/web"})
	if err != nil || len(answer.Notes) != 2 || !strings.HasPrefix(answer.Notes[0], "another program routes Services") ||
		!strings.HasPrefix(answer.Notes[1], "another program enforces policies") {
		t.Errorf("%+v, %v", answer, err)
	}
}

// Policies decide about endpoints, not about the Service's address.
func TestPolicies(t *testing.T) {
	a := newTestAsker(t)
	one, two := netip.MustParseAddr("10.85.0.3"), netip.MustParseAddr("10.85.0.4")
	for _, tc := range []struct {
		denied           denies
		to               string
		verdict, because string
	}{
		{nil, "svc/web", Reached, ""},
		{denies{one}, "svc/web", Partly, "policies deny 1 of 2 endpoints"},
		{denies{one, two}, "svc/web", Denied, "policies deny it"},
		{denies{one}, "pod/web-1", Denied, "policies deny it"},
		{nil, "pod/web-1:53/udp", Denied, "policies deny it"},
		{denies{one, two}, "svc/empty", Refused, "it has no endpoint that is ready"},
	} {
		a.Policies = tc.denied
		answer, err := a.Why(t.Context(), Question{Namespace: "shop", Source: "pod/cart", Destination: tc.to})
		if err != nil {
			t.Fatal(err)
		}
		c := answer.Connections[0]
		if c.Verdict != tc.verdict || c.Because != tc.because {
			t.Errorf("%s with %v denied: %+v", tc.to, tc.denied, c)
		}
		for _, e := range c.Endpoints {
			if e.Used != (e.Policy != nil) || e.Used && e.Policy.Allowed == slices.Contains(tc.denied, e.Address.Addr()) &&
				e.Address.Port() == 8080 {
				t.Errorf("%s with %v denied: %+v", tc.to, tc.denied, e)
			}
		}
	}
}

// toItself leads connections to the port 6443 of the same address. (The real proxy asks this
// machine for its addresses.)
type toItself struct{}

func (toItself) Route(_ netip.Addr, destination netip.AddrPort, _ byte) (*proxy.Route, bool, error) {
	return &proxy.Route{
		Service: types.NamespacedName{Namespace: "default", Name: "kubernetes"}, Way: "cluster address",
		Endpoints: []netip.AddrPort{netip.AddrPortFrom(destination.Addr(), 6443)},
	}, true, nil
}

// The node has some addresses that its object does not tell: of the API server and the DNS for
// pods, and the pods' gateway.
func TestAddressesOfTheNode(t *testing.T) {
	a := newTestAsker(t)
	server, gateway := netip.MustParseAddr("10.96.0.11"), netip.MustParseAddr("10.85.0.1")
	service := netip.MustParseAddr("10.96.0.13")
	own := []netip.Addr{server, gateway, service}
	a.Local = func(address netip.Addr) bool { return slices.Contains(own, address) }
	const only = "only the node and its pods reach this address"
	for _, tc := range []struct{ from, to, verdict, because, node string }{
		{"pod/cart", "10.96.0.11:53", Reached, "", "here"},
		{"10.85.0.2", "10.96.0.11:53/udp", Reached, "", "here"},
		{"node/here", "10.96.0.11:53", Reached, "", "here"},
		{"10.85.0.1", "10.96.0.11:53", Reached, "", "here"},
		{"198.51.100.7", "10.96.0.11:53", Dropped, only, "here"},
		{"pod/far", "10.96.0.11:53", Dropped, only, "here"},
		{"pod/cart", "10.85.0.1:80", Reached, "", "here"},
		{"198.51.100.7", "10.85.0.1:80", Reached, "", "here"}, // no rule guards it
		{"198.51.100.7", "10.96.0.12:53", Reached, "", ""},    // not this node's
		{"pod/cart", "10.96.0.13:443", Reached, "", "here"},   // of a Service, as the API server's
		{"198.51.100.7", "10.96.0.13:443", Dropped, only, "here"},
	} {
		if a.Routes = nil; strings.HasPrefix(tc.to, service.String()) {
			a.Routes = toItself{}
		}
		answer, err := a.Why(t.Context(), Question{Namespace: "shop", Source: tc.from, Destination: tc.to})
		if err != nil {
			t.Fatal(err)
		}
		c := answer.Connections[0]
		if c.Verdict != tc.verdict || c.Because != tc.because || len(c.Endpoints) != 1 || c.Endpoints[0].Node != tc.node ||
			answer.Destination.Node != tc.node {
			t.Errorf("%s to %s: %+v", tc.from, tc.to, answer)
		}
	}
}

package bgp

import (
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/coracle-project/coracle/cluster/bgp/routes"
	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/health"
	"github.com/coracle-project/coracle/cluster/loadbalancer"
)

// world is what the informers of node a have.
type world struct {
	*Routes
	t     *testing.T
	set   *client.Set
	board health.Board
}

func newWorld(t *testing.T, pool ...string) *world {
	t.Helper()
	p, err := loadbalancer.ParsePool(pool)
	if err != nil {
		t.Fatal(err)
	}
	api := fake.NewClientset()
	w := &world{t: t, set: &client.Set{Kube: api, Informers: client.NewInformers(api)}}
	w.Routes = New(w.set, Options{NodeName: "a", Pool: p, Dir: t.TempDir(), Health: w.board.Add("BGP routes")})
	return w
}

func (w *world) add(objects ...any) {
	w.t.Helper()
	core := w.set.Informers.Core().V1()
	for _, object := range objects {
		var err error
		switch object.(type) {
		case *corev1.Node:
			err = core.Nodes().Informer().GetIndexer().Add(object)
		case *corev1.Service:
			err = core.Services().Informer().GetIndexer().Add(object)
		case *discoveryv1.EndpointSlice:
			err = w.set.Informers.Discovery().V1().EndpointSlices().Informer().GetIndexer().Add(object)
		}
		if err != nil {
			w.t.Fatal(err)
		}
	}
}

// check compares what the file says.
func (w *world) check(want ...string) {
	w.t.Helper()
	if err := w.sync(); err != nil {
		w.t.Fatal(err)
	}
	f, err := os.Open(filepath.Join(w.Dir, routes.File))
	if err != nil {
		w.t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	r, err := routes.Decode(f)
	if err != nil {
		w.t.Fatal(err)
	}
	var got []string
	for _, p := range r.Prefixes {
		got = append(got, p.String()+" "+r.NextHop(p.Addr()).String())
	}
	if !reflect.DeepEqual(got, want) {
		w.t.Errorf("%q instead of %q", got, want)
	}
}

func node(name string, change ...func(*corev1.Node)) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{PodCIDRs: []string{"10.85.1.0/24", "fd85:0:0:1::/64"}}}
	n.Status.Addresses = []corev1.NodeAddress{
		{Type: corev1.NodeHostName, Address: name},
		{Type: corev1.NodeInternalIP, Address: "10.0.0.1"},
		{Type: corev1.NodeInternalIP, Address: "fd00::1"},
	}
	for _, c := range change {
		c(n)
	}
	return n
}

func service(name string, policy corev1.ServiceExternalTrafficPolicy, addresses ...string) *corev1.Service {
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, ExternalTrafficPolicy: policy},
	}
	for _, a := range addresses {
		s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: a})
	}
	return s
}

const (
	everywhere = corev1.ServiceExternalTrafficPolicyCluster
	where      = corev1.ServiceExternalTrafficPolicyLocal
)

// endpoints are of a Service, on a node, ready or not.
func endpoints(service, node string, ready bool) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Name: service + "-1", Namespace: "default", Labels: map[string]string{discoveryv1.LabelServiceName: service},
		},
		Endpoints: []discoveryv1.Endpoint{{NodeName: &node, Conditions: discoveryv1.EndpointConditions{Ready: &ready}}},
	}
}

var (
	pods4, pods6 = "10.85.1.0/24 10.0.0.1", "fd85:0:0:1::/64 fd00::1"
	pool         = []string{"192.0.2.0/28", "fd99::/120"}
)

func TestPodNetworks(t *testing.T) {
	w := newWorld(t)
	w.check() // the node is not registered yet
	w.add(node("b"))
	w.check()
	w.add(node("a"))
	w.check(pods4, pods6)
	w.add(node("a", func(n *corev1.Node) { n.Spec.PodCIDRs = []string{"0.0.0.0/0", "no network", "10.85.2.0/24"} }))
	w.check("10.85.2.0/24 10.0.0.1")
	w.add(node("a", func(n *corev1.Node) { n.Status.Addresses = n.Status.Addresses[2:] }))
	w.check(pods6)
}

func TestServices(t *testing.T) {
	w := newWorld(t, pool...)
	class := service("other", everywhere, "192.0.2.9")
	class.Spec.LoadBalancerClass = new("example.com/other")
	w.add(node("a"), node("b"), class, service("all", everywhere, "192.0.2.1", "fd99::1", "192.0.2.3"), // one of each family
		service("foreign", everywhere, "203.0.113.1"), // in no pool: another controller's, or forged
		service("nodes", everywhere, "10.0.0.1"))
	w.check(pods4, "192.0.2.1/32 10.0.0.1", pods6, "fd99::1/128 fd00::1")

	w.add(service("here", where, "192.0.2.2"), endpoints("here", "b", true))
	w.check(pods4, "192.0.2.1/32 10.0.0.1", pods6, "fd99::1/128 fd00::1")
	w.add(endpoints("here", "a", false))
	w.check(pods4, "192.0.2.1/32 10.0.0.1", pods6, "fd99::1/128 fd00::1")
	w.add(endpoints("here", "a", true))
	w.check(pods4, "192.0.2.1/32 10.0.0.1", "192.0.2.2/32 10.0.0.1", pods6, "fd99::1/128 fd00::1")

	w.add(node("a", func(n *corev1.Node) { n.Labels = map[string]string{corev1.LabelNodeExcludeBalancers: ""} }))
	w.check(pods4, pods6)
}

// Without a pool, Services have the nodes' own addresses, which routers know by the link.
func TestNodesAddressesAreNotAnnounced(t *testing.T) {
	w := newWorld(t)
	w.add(node("a"), service("web", everywhere, "10.0.0.1"))
	w.check(pods4, pods6)
}

func TestWhatDecides(t *testing.T) {
	w := newWorld(t, pool...)
	w.add(service("here", where, "192.0.2.2"), service("all", everywhere, "192.0.2.1"))
	for name, want := range map[string]bool{"here": true, "all": false, "gone": false} {
		if got := w.decides(endpoints(name, "a", true)); got != want {
			t.Errorf("endpoints of %s: %v", name, got)
		}
	}
	if w.decides(node("a")) || !isNode(node("a"), "a") || isNode(node("b"), "a") {
		t.Error("a node is taken for something else")
	}
}

// However many Services there are, the node's own networks are announced, and status says what is
// not.
func TestTooManyServices(t *testing.T) {
	const many = 20_000
	w := newWorld(t, "10.0.0.0/9") // before the pods'
	w.add(node("a"))
	for k := range many {
		w.add(service(strconv.Itoa(k), everywhere, netip.AddrFrom4([4]byte{10, 1, byte(k / 200), byte(1 + k%200)}).String()))
	}
	now, err := w.routes()
	if err != nil || len(now.Prefixes) != many || !slices.Contains(now.Prefixes, netip.MustParsePrefix("10.85.1.0/24")) ||
		!slices.Contains(now.Prefixes, netip.MustParsePrefix("fd85:0:0:1::/64")) {
		t.Errorf("%d routes, %v", len(now.Prefixes), err)
	}
	if err := w.sync(); err != nil {
		t.Error(err)
	}
	if s := w.board.States()[0]; !s.Healthy || len(s.Warnings) != 1 || !strings.Contains(s.Warnings[0], "2 addresses of Services are not announced") {
		t.Errorf("%+v", s)
	}
}

func TestUnwritableDirectory(t *testing.T) {
	w := newWorld(t)
	w.Dir = filepath.Join(w.Dir, "gone")
	w.add(node("a"))
	if err := w.sync(); err == nil {
		t.Fatal("it says that it works")
	}
	if s := w.board.States()[0]; s.Healthy || s.Message == "" {
		t.Errorf("%+v", s)
	}
}

// Another process reads the file without root's rights.
func TestOthersMayReadTheFile(t *testing.T) {
	w := newWorld(t)
	w.add(node("a"))
	w.check(pods4, pods6)
	info, err := os.Stat(filepath.Join(w.Dir, routes.File))
	if err != nil || info.Mode().Perm() != 0o644 {
		t.Errorf("%v, %v", info, err)
	}
}

func TestAddresses(t *testing.T) {
	n := node("a", func(n *corev1.Node) {
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: "fe80::1%eth0"},
			corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: "0.0.0.0"}, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: "x"})
	})
	want := []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::1")}
	if got := addresses(n); !reflect.DeepEqual(got, want) {
		t.Errorf("%v instead of %v", got, want)
	}
}

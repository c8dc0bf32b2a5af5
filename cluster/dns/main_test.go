package dns

import (
	"encoding/binary"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"github.com/coracle-project/coracle/cluster/dns/forward"
)

// pod is who asks.
var pod = netip.MustParseAddr("10.244.0.9")

func namespaced(namespace, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name}
}

func ports(named ...string) (all []corev1.ServicePort) {
	for i, name := range named {
		protocol := corev1.ProtocolTCP
		if strings.HasPrefix(name, "dns") {
			protocol = corev1.ProtocolUDP
		}
		all = append(all, corev1.ServicePort{Name: name, Port: int32(80 + i), Protocol: protocol})
	}
	return all
}

// clusterService is a Service with addresses, and the API's objects of these.
func clusterService(namespace, name string, ips []string, named ...string) []runtime.Object {
	s := &corev1.Service{
		ObjectMeta: namespaced(namespace, name),
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP, ClusterIP: ips[0], ClusterIPs: ips, Ports: ports(named...)},
	}
	all := []runtime.Object{s}
	for _, ip := range ips {
		all = append(all, &networkingv1.IPAddress{
			ObjectMeta: metav1.ObjectMeta{Name: ip},
			Spec:       networkingv1.IPAddressSpec{ParentRef: &networkingv1.ParentReference{Resource: "services", Namespace: namespace, Name: name}},
		})
	}
	return all
}

func headlessService(namespace, name string, named ...string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: namespaced(namespace, name),
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, ClusterIP: corev1.ClusterIPNone, ClusterIPs: []string{corev1.ClusterIPNone}, Ports: ports(named...),
		},
	}
}

func externalService(namespace, name, target string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: namespaced(namespace, name), Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: target},
	}
}

// sliceOf is an EndpointSlice as the controller makes them, of endpoints "ADDRESS",
// "ADDRESS=HOSTNAME" or "ADDRESS!", which is not ready.
func sliceOf(s *corev1.Service, number int, endpoints ...string) *discoveryv1.EndpointSlice {
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  namespaced(s.Namespace, fmt.Sprintf("%s-%d", s.Name, number)),
		AddressType: discoveryv1.AddressTypeIPv4,
	}
	slice.Labels = map[string]string{discoveryv1.LabelServiceName: s.Name}
	if s.Spec.ClusterIP == corev1.ClusterIPNone {
		slice.Labels[corev1.IsHeadlessService] = ""
	}
	for i := range s.Spec.Ports {
		p := &s.Spec.Ports[i]
		slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: &p.Name, Port: ptr.To(8000 + p.Port), Protocol: &p.Protocol})
	}
	for _, text := range endpoints {
		text, notReady := strings.CutSuffix(text, "!")
		address, hostname, _ := strings.Cut(text, "=")
		if strings.Contains(address, ":") {
			slice.AddressType = discoveryv1.AddressTypeIPv6
		}
		e := discoveryv1.Endpoint{Addresses: []string{address}, Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(!notReady)}}
		if hostname != "" {
			e.Hostname = &hostname
		}
		slice.Endpoints = append(slice.Endpoints, e)
	}
	return slice
}

// newHandler is a handler for a cluster of these objects. No one answers for other names, unless
// config names a server for them.
func newHandler(t testing.TB, config forward.Config, all ...runtime.Object) *handler {
	t.Helper()
	shared := informers.NewSharedInformerFactory(fake.NewClientset(), 0)
	o, err := newObjects(shared)
	if err != nil {
		t.Fatal(err)
	}
	for _, obj := range all {
		informer := map[bool]cache.SharedIndexInformer{}[false]
		switch obj.(type) {
		case *corev1.Service:
			informer = o.services
		case *corev1.Namespace:
			informer = o.namespaces
		case *networkingv1.IPAddress:
			informer = o.addresses
		case *discoveryv1.EndpointSlice:
			informer = o.slices
		}
		if err := informer.GetStore().Add(obj); err != nil {
			t.Fatal(err)
		}
	}
	if config.ResolvConf == "" {
		config.ResolvConf = t.TempDir() + "/none"
	}
	f := forward.New(config)
	t.Cleanup(f.Close)
	nets := []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("fd00:96::/112")}
	return &handler{zone: newZone(o, "cluster.local", nets), forward: f, log: slog.New(slog.DiscardHandler)}
}

// ask is a query, changed by change.
func ask(t testing.TB, name string, kind uint16, change ...func(*dns.Msg)) []byte {
	t.Helper()
	m := new(dns.Msg)
	m.SetQuestion(name, kind)
	for _, c := range change {
		c(m)
	}
	packet, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	return packet
}

// withEDNS is a change of a query, as most clients make it.
func withEDNS(m *dns.Msg) { m.SetEdns0(payload, false) }

// query returns what a client gets for a query, nil for nothing.
func (h *handler) query(t testing.TB, from sender, name string, kind uint16, change ...func(*dns.Msg)) *dns.Msg {
	t.Helper()
	packet := ask(t, name, kind, change...)
	wire := h.packet(packet, from)
	if wire == nil {
		return nil
	}
	reply := new(dns.Msg)
	if err := reply.Unpack(wire); err != nil {
		t.Fatalf("the reply to %s %s is broken: %v", dns.TypeToString[kind], name, err)
	}
	if reply.Id != binary.BigEndian.Uint16(packet) || !reply.Response {
		t.Errorf("the reply to %s %s is none: %v", dns.TypeToString[kind], name, reply)
	}
	return reply
}

func (h *handler) packet(packet []byte, from sender) []byte {
	wire, ask := h.handle(packet, from, make([]byte, payload))
	if ask != nil {
		wire = ask()
	}
	return wire
}

// text are records as one reads them, in a fixed order.
func text(records []dns.RR) []string {
	all := []string{}
	for _, rr := range records {
		if rr.Header().Rrtype != dns.TypeOPT {
			all = append(all, strings.Join(strings.Fields(rr.String()), " "))
		}
	}
	slices.Sort(all)
	return all
}

package proxy

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coracle-project/coracle/cluster/proxy/rules"
)

// Route is what the rules do with a new connection to an address of a Service.
type Route struct {
	Service types.NamespacedName // empty if no Service has the address
	Port    string               // its name, "" for none
	// Way is what of the Service the address is: "cluster address", "node port", "external address"
	// or "load balancer's address".
	Way string
	// Endpoints are those that a connection may get, one at random.
	Endpoints []netip.AddrPort
	// Local says that only endpoints of this node are used, because of a traffic policy.
	Local bool
	// Affinity is how long a client keeps its endpoint; 0: not at all.
	Affinity time.Duration
	// Masquerade gives the connection the node's address as source.
	Masquerade bool
	// Refused says that there is no endpoint, and how a connection ends then; Dropped, that it gets
	// no answer.
	Refused, Dropped string
}

// Route returns what happens to a connection from source to an address, and false if that is no
// business of Services. It is decided from the objects that the rules are made from, by the same
// functions.
func (p *Proxy) Route(source netip.Addr, destination netip.AddrPort, protocol byte) (*Route, bool, error) {
	services, err := p.set.Informers.Core().V1().Services().Lister().List(labels.Everything())
	if err != nil {
		return nil, false, err
	}
	slices.SortFunc(services, func(a, b *corev1.Service) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) })
	node := localAddress(destination.Addr())
	for _, s := range services {
		if s = p.taken(s); foreign(s.Labels) {
			continue
		}
		if r, err := p.routeOf(s, source, destination, protocol, node); r != nil || err != nil {
			return r, r != nil, err
		}
	}
	if slices.ContainsFunc(p.ServiceRanges, func(r netip.Prefix) bool { return r.Contains(destination.Addr()) }) && !node {
		return &Route{Refused: "no Service has this address and port"}, true, nil
	}
	return nil, false, nil
}

// localAddress says whether this node has an address where node ports answer.
func localAddress(a netip.Addr) bool {
	if a.IsLoopback() {
		return false
	}
	all, err := net.InterfaceAddrs()
	return err == nil && slices.ContainsFunc(all, func(each net.Addr) bool {
		n, ok := each.(*net.IPNet)
		own, valid := netip.Addr{}, false
		if ok {
			own, valid = netip.AddrFromSlice(n.IP)
		}
		return valid && own.Unmap() == a
	})
}

// routeOf returns what happens if a Service has the address, or nil.
func (p *Proxy) routeOf(s *corev1.Service, source netip.Addr, destination netip.AddrPort, protocol byte, node bool) (*Route, error) {
	family := corev1.IPv4Protocol
	if destination.Addr().Is6() {
		family = corev1.IPv6Protocol
	}
	t := newTranslation(family, &p.Options)
	t.serviceChanged(nil, s)
	t.portMap.Update(t.services)
	for name, port := range t.portMap {
		if protocols[name.Protocol] != protocol || !node && port.Port() != int(destination.Port()) {
			continue
		}
		if err := p.addEndpoints(t, s); err != nil {
			return nil, err
		}
		wanted := t.port(name, t.endpoints(name), p.node.now())
		for _, f := range wanted.Frontends {
			if f.Port != destination.Port() || f.Addr != destination.Addr() && (f.Addr.IsValid() || !node) {
				continue
			}
			return p.routeBy(s, name.Port, port.UsesLocalEndpoints(), wanted, f, source), nil
		}
	}
	return nil, nil
}

// addEndpoints gives a translation the endpoints of a Service.
func (p *Proxy) addEndpoints(t *translation, s *corev1.Service) error {
	selector := labels.SelectorFromSet(labels.Set{discoveryv1.LabelServiceName: s.Name})
	all, err := p.set.Informers.Discovery().V1().EndpointSlices().Lister().EndpointSlices(s.Namespace).List(selector)
	if err != nil {
		return fmt.Errorf("list endpoints of Service %s/%s: %w", s.Namespace, s.Name, err)
	}
	for _, slice := range all {
		if !foreign(slice.Labels) {
			t.lists.update(slice, false)
		}
	}
	return nil
}

// routeBy is what the rules of a frontend do.
func (p *Proxy) routeBy(s *corev1.Service, port string, local bool, wanted *rules.Port, f rules.Frontend, source netip.Addr) *Route {
	// The maps for this node and its pods have what differs.
	chosen, masquerade := f.Backend, f.Masquerade
	inside := p.pods.holds(source) || localAddress(source) || slices.ContainsFunc(p.PodRanges, func(r netip.Prefix) bool {
		return r.Contains(source)
	})
	if inside && f.Inside != f.Backend {
		chosen, masquerade = f.Inside, false
	}
	backend := wanted.Backends[chosen]
	r := &Route{
		Service: types.NamespacedName{Namespace: s.Namespace, Name: s.Name}, Port: port, Way: wayOf(s, f),
		Endpoints: backend.Endpoints[:min(len(backend.Endpoints), rules.MaxEndpoints)],
		Local:     local && chosen == len(wanted.Backends)-1, Affinity: backend.Affinity, Masquerade: masquerade && !localAddress(source),
	}
	allowed := !f.Limited || slices.ContainsFunc(f.Sources, func(n netip.Prefix) bool { return n.Contains(source) })
	switch {
	case !allowed:
		r.Dropped = "its loadBalancerSourceRanges do not have the source"
	case len(r.Endpoints) == 0 && backend.Drop:
		r.Dropped = "its traffic policy is Local, and only other nodes have endpoints"
	case len(r.Endpoints) == 0:
		r.Refused = "it has no endpoint that is ready"
	}
	return r
}

func wayOf(s *corev1.Service, f rules.Frontend) string {
	switch ip := f.Addr.String(); {
	case !f.Addr.IsValid():
		return "node port"
	case ip == s.Spec.ClusterIP || slices.Contains(s.Spec.ClusterIPs, ip):
		return "cluster address"
	case slices.Contains(s.Spec.ExternalIPs, ip):
		return "external address"
	}
	return "load balancer's address"
}

// now returns the labels of the node.
func (n *nodeState) now() map[string]string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.labels
}

// holds reports whether a pod of this node has an address.
func (s *podState) holds(a netip.Addr) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.has(a)
}

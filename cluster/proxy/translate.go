package proxy

import (
	"net"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	upstream "k8s.io/kubernetes/pkg/proxy"
	"k8s.io/kubernetes/pkg/proxy/conntrack"
	"k8s.io/kubernetes/pkg/proxy/healthcheck"
	proxyutil "k8s.io/kubernetes/pkg/proxy/util"

	"github.com/coracle-project/coracle/cluster/proxy/rules"
)

// translation makes rules of the Services and endpoints of one address family. Handlers of
// informers use serviceChanged and lists; everything else is the loop's.
type translation struct {
	*Options
	family   corev1.IPFamily
	services *upstream.ServiceChangeTracker
	lists    *endpointLists

	portMap upstream.ServicePortMap
	dirty   map[upstream.ServicePortName]bool // ports that changed
	udp     bool                              // flows may go to endpoints that are gone
	// connections are the ports, of other protocols, to which connections may lead to endpoints that
	// are gone.
	connections map[upstream.ServicePortName]bool
	local       map[upstream.ServicePortName][]netip.Addr
	pods        map[netip.Addr]int // how many ports have the pod as an endpoint

	health      healthcheck.ServiceHealthServer
	healthPorts map[upstream.ServicePortName]uint16
	conntrack   conntrack.Interface
}

func newTranslation(family corev1.IPFamily, o *Options) *translation {
	t := &translation{
		Options: o, family: family, lists: newEndpointLists(family), portMap: upstream.ServicePortMap{},
		dirty: map[upstream.ServicePortName]bool{}, connections: map[upstream.ServicePortName]bool{},
		local: map[upstream.ServicePortName][]netip.Addr{}, pods: map[netip.Addr]int{},
		healthPorts: map[upstream.ServicePortName]uint16{}, conntrack: conntrack.New(),
	}
	t.services = upstream.NewServiceChangeTracker(family, nil, func(before, now upstream.ServicePortMap) {
		for _, ports := range []upstream.ServicePortMap{before, now} {
			for name := range ports {
				t.change(name)
			}
		}
	})
	return t
}

// serviceChanged takes a Service that is new, has changed or is gone, unless it is of the other
// family only.
func (t *translation) serviceChanged(before, now *corev1.Service) {
	has := func(s *corev1.Service) bool { return s != nil && proxyutil.GetClusterIPByFamily(t.family, s) != "" }
	if has(before) || has(now) {
		t.services.Update(before, now)
	}
}

// change notes that a port has changed.
func (t *translation) change(name upstream.ServicePortName) {
	t.dirty[name] = true
	t.udp = t.udp || name.Protocol == corev1.ProtocolUDP
}

// partSize is how many endpoints are sent ahead at once. The kernel takes some 10 ms for them.
const partSize = 4096

// update adds to change what is different since the last time; everything depends on some labels of
// the node. It sends that to parts, too, unless that is nil.
func (t *translation) update(labels map[string]string, relabeled bool, change *rules.Change, parts chan<- map[rules.Key]*rules.Port) {
	t.portMap.Update(t.services)
	for name := range t.lists.take() {
		t.change(name)
	}
	if relabeled {
		for name := range t.portMap {
			t.dirty[name] = true
		}
	}
	part, size := map[rules.Key]*rules.Port{}, 0
	var room endpointRoom
	for name := range t.dirty {
		endpoints := t.lists.endpoints(name, t.NodeName, &room)
		key, port := t.key(name), t.port(name, endpoints, labels)
		if !t.WatchPods {
			t.notePods(name, endpoints, change.Pods)
		}
		change.Ports[key] = port
		t.noteConnections(name)
		if parts == nil {
			continue
		}
		part[key] = port
		if size += len(endpoints); size >= partSize {
			parts <- part
			part, size = map[rules.Key]*rules.Port{}, 0
		}
	}
	if len(part) > 0 {
		parts <- part
	}
	t.dirty = map[upstream.ServicePortName]bool{} // it would stay as large as it ever was
}

// endpoints are those of a port.
func (t *translation) endpoints(name upstream.ServicePortName) []upstream.Endpoint {
	return t.lists.endpoints(name, t.NodeName, &endpointRoom{})
}

func (t *translation) key(name upstream.ServicePortName) rules.Key {
	port := ""
	if name.Port != "" {
		port = ":" + name.Port
	}
	return rules.Key(name.Namespace + "/" + name.Name + port + "/" + string(name.Protocol) + "/" + string(t.family))
}

var protocols = map[corev1.Protocol]byte{
	corev1.ProtocolTCP: unix.IPPROTO_TCP, corev1.ProtocolUDP: unix.IPPROTO_UDP, corev1.ProtocolSCTP: unix.IPPROTO_SCTP,
}

// The backends of a port: all endpoints that its traffic may go to, and those of this node.
const (
	cluster = iota
	local
)

// port returns what is wanted for a port of a Service; nil if there is no such port.
func (t *translation) port(name upstream.ServicePortName, endpoints []upstream.Endpoint, labels map[string]string) *rules.Port {
	service, exists := t.portMap[name]
	protocol, known := protocols[name.Protocol]
	if exists && service.HealthCheckNodePort() != 0 {
		t.healthPorts[name] = uint16(service.HealthCheckNodePort())
	} else {
		delete(t.healthPorts, name)
	}
	if !exists || !known {
		return nil
	}
	all, here, _, anywhere := upstream.CategorizeEndpoints(endpoints, service, t.NodeName, labels)
	var affinity time.Duration
	if service.SessionAffinityType() == corev1.ServiceAffinityClientIP {
		affinity = time.Duration(service.StickyMaxAgeSeconds()) * time.Second
	}
	port := &rules.Port{
		Protocol: protocol, IPv6: t.family == corev1.IPv6Protocol,
		Backends: []rules.Backend{{Endpoints: t.targets(name, all), Affinity: affinity}},
	}
	if service.UsesLocalEndpoints() {
		port.Backends = append(port.Backends, rules.Backend{Endpoints: t.targets(name, here), Affinity: affinity, Drop: anywhere})
	}
	t.frontends(port, name, service)
	return port
}

// frontends adds to a port where it is reached.
func (t *translation) frontends(port *rules.Port, name upstream.ServicePortName, service upstream.ServicePort) {
	internal, external := cluster, cluster
	if service.InternalPolicyLocal() {
		internal = local
	}
	if service.ExternalPolicyLocal() && service.ExternallyAccessible() {
		external = local
	}
	add := func(ip net.IP, number int, f rules.Frontend) {
		if ip != nil {
			a, ok := netip.AddrFromSlice(ip)
			if !ok {
				return
			}
			f.Addr = a.Unmap()
			if f.Limited { // the node's own requests to an address that it has come from there
				f.Sources = append(f.Sources, netip.PrefixFrom(f.Addr, f.Addr.BitLen()))
			}
		}
		f.Port = uint16(number)
		port.Frontends = append(port.Frontends, f)
	}
	add(service.ClusterIP(), service.Port(), rules.Frontend{Backend: internal, Inside: internal})
	// What the node holds for its pods is not for others: the API server that is bound to loopback,
	// and the DNS. Endpoints of the node are chosen by themselves, so any backend may have one.
	if slices.ContainsFunc(port.Backends, func(b rules.Backend) bool { return slices.ContainsFunc(b.Endpoints, t.held) }) {
		if service.NodePort() != 0 || len(service.LoadBalancerVIPs()) > 0 || len(service.ExternalIPs()) > 0 {
			t.Log.Warn("a Service is reached by its cluster address only, as it leads to an address of the Services' network", "service",
				name.NamespacedName)
		}
		return
	}
	outer := rules.Frontend{Backend: external, Inside: cluster, Masquerade: external == cluster}
	for _, ip := range service.ExternalIPs() {
		add(ip, service.Port(), outer)
	}
	if service.NodePort() != 0 {
		add(nil, service.NodePort(), outer)
	}
	var sources []netip.Prefix
	for _, s := range service.LoadBalancerSourceRanges() {
		if p, err := netip.ParsePrefix(s.String()); err == nil {
			sources = append(sources, p)
		}
	}
	for _, ip := range service.LoadBalancerVIPs() {
		balanced := outer
		balanced.Limited, balanced.Sources = len(sources) > 0, sources[:len(sources):len(sources)]
		add(ip, service.Port(), balanced)
	}
}

// held says whether an endpoint is in a network of Services' addresses: a node holds such an
// address itself.
func (t *translation) held(endpoint netip.AddrPort) bool {
	return slices.ContainsFunc(t.ServiceRanges, func(r netip.Prefix) bool { return r.Contains(endpoint.Addr()) })
}

// targets are the addresses of endpoints. Those that lead to the node itself are left out, as the
// API server refuses them, too: a Service would make them reachable to others.
func (t *translation) targets(name upstream.ServicePortName, endpoints []upstream.Endpoint) []netip.AddrPort {
	targets := make([]netip.AddrPort, 0, len(endpoints))
	for _, each := range endpoints {
		e := each.(*endpoint)
		a := e.target.Addr()
		if !a.IsValid() || a.IsLoopback() || a.IsLinkLocalUnicast() || a.IsMulticast() || a.IsUnspecified() ||
			a.Is6() != (t.family == corev1.IPv6Protocol) {
			t.Log.Warn("an endpoint is left out, as its address is not one of a pod or node", "service", name.NamespacedName, "address",
				e.Addresses[0])
			continue
		}
		targets = append(targets, e.target)
	}
	if len(targets) > rules.MaxEndpoints {
		t.Log.Warn("some endpoints get no connections, as there are too many", "service", name.NamespacedName, "endpoints", len(targets), "max",
			rules.MaxEndpoints)
	}
	return targets
}

// notePods counts this node's pods among the endpoints of a port.
func (t *translation) notePods(name upstream.ServicePortName, endpoints []upstream.Endpoint, changed rules.Pods) {
	before := t.local[name]
	var now []netip.Addr
	for _, e := range endpoints {
		if a := e.(*endpoint).target.Addr(); e.IsLocal() && a.IsValid() && !slices.Contains(t.NodeIPs, a) {
			now = append(now, a)
		}
	}
	for _, a := range now {
		if t.pods[a]++; t.pods[a] == 1 {
			changed[a] = true
		}
	}
	for _, a := range before {
		if t.pods[a]--; t.pods[a] == 0 {
			delete(t.pods, a)
			changed[a] = false
		}
	}
	if t.local[name] = now; len(now) == 0 {
		delete(t.local, name)
	}
}

// applied does what must follow rules that are in force: it ends UDP flows to endpoints that are
// gone and tells load balancers how many endpoints this node has.
func (t *translation) applied() {
	if t.udp {
		ports, endpoints := upstream.ServicePortMap{}, upstream.EndpointsMap{}
		for name, port := range t.portMap {
			if name.Protocol == corev1.ProtocolUDP {
				ports[name], endpoints[name] = port, t.endpoints(name)
			}
		}
		conntrack.CleanStaleEntries(t.conntrack, t.family, ports, endpoints)
		t.udp = false
	}
	ports, ready := map[types.NamespacedName]uint16{}, map[types.NamespacedName]map[string]bool{}
	for name, port := range t.healthPorts {
		ports[name.NamespacedName] = port
		for _, e := range t.endpoints(name) {
			if !e.IsReady() || !e.IsLocal() {
				continue
			}
			if ready[name.NamespacedName] == nil {
				ready[name.NamespacedName] = map[string]bool{}
			}
			ready[name.NamespacedName][e.IP()] = true
		}
	}
	counts := map[types.NamespacedName]int{}
	for name, addresses := range ready {
		counts[name] = len(addresses)
	}
	_ = t.health.SyncServices(ports) // it reports what fails by Events
	_ = t.health.SyncEndpoints(counts)
}

// healthy is what load balancers are told of the proxy itself.
type healthy struct{}

func (healthy) Health() healthcheck.ProxyHealth { return healthcheck.ProxyHealth{Healthy: true} }

// serveHealth prepares the answers at healthCheckNodePorts, on all addresses of the node.
func (t *translation) serveHealth(node string, recorder events.EventRecorder) {
	addresses := proxyutil.NewNodePortAddresses(t.family, nil)
	t.health = healthcheck.NewServiceHealthServer(node, recorder, addresses, healthy{}, t.family)
}

func (t *translation) endHealth() { _ = t.health.SyncServices(nil) }

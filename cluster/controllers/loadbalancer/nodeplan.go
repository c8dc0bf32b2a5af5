package loadbalancer

import (
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// place is a port of a node's address; the zero address means all addresses of nodes.
type place struct {
	address  netip.Addr
	protocol corev1.Protocol
	port     int32
}

// machines is what Services without a pool share: the addresses of nodes.
type machines struct {
	// addresses returns those of the nodes that can take a Service's connections.
	addresses func(*corev1.Service) []netip.Addr
	// nodePorts are those of all Services, by place, and what has them.
	nodePorts map[place]string
	// reserved are the node's own TCP ports, and what has them.
	reserved map[int32]string
	// state says whether something uses a place.
	state func(place) portState
	// asked is since when Services have waited for the answers of nodes.
	asked map[types.UID]time.Time
}

// portState is what is known of a place.
type portState int

const (
	portUnknown portState = iota // the node has not answered
	portFree
	portUsed
)

// patience is how long a Service waits for the answers of nodes. Nodes that do not answer, such as
// those with another kubelet, are left out then, until they do.
const patience = 10 * time.Second

// nodePorts returns the node ports of Services.
func nodePorts(services []*corev1.Service) map[place]string {
	all := map[place]string{}
	for _, service := range services {
		owner := "Service " + service.Namespace + "/" + service.Name
		for _, port := range service.Spec.Ports {
			if port.NodePort != 0 {
				all[place{protocol: port.Protocol, port: port.NodePort}] = owner
			}
		}
		if check := service.Spec.HealthCheckNodePort; check != 0 {
			all[place{protocol: corev1.ProtocolTCP, port: check}] = owner
		}
	}
	return all
}

// fromNodes gives each Service the addresses of nodes, if all its ports are free there. What the
// status of another Service has is not free, whatever the age of that Service; of what is left, the
// oldest gets it first. It returns when to look again, 0 for not before something changes.
func fromNodes(m machines, all []*request, others []*corev1.Service, now time.Time) (next time.Duration) {
	soon := func(d time.Duration) {
		if next == 0 || d < next {
			next = d
		}
	}
	taken := map[place]string{}
	for _, service := range others { // the proxy routes what they have
		for p := range granted(service) {
			taken[p] = "Service " + service.Namespace + "/" + service.Name
		}
	}
	wanted := map[*request][]netip.Addr{}
	holds, waits := map[*request]bool{}, map[*request]bool{}
	for _, r := range all {
		has := granted(r.Service)
		var wait time.Duration
		if wanted[r], wait = r.answered(m, r.ofNodes(m.addresses(r.Service)), has, now); wait > 0 {
			soon(wait)
			waits[r] = true
			r.outcome.addresses, r.outcome.ports = r.has, r.hasPorts()
		}
		for p := range has {
			if taken[p] == "" && (waits[r] || slices.Contains(wanted[r], p.address)) {
				taken[p], holds[r] = "Service "+r.name(), true
			}
		}
	}
	for _, r := range all {
		if waits[r] {
			continue
		}
		if len(wanted[r]) == 0 || r.DeletionTimestamp != nil && !holds[r] {
			continue
		}
		before, places := len(r.outcome.problems), r.places(wanted[r])
		if r.conflicts(m, places, taken) {
			soon(again)
		}
		if len(r.outcome.problems) > before {
			continue
		}
		for _, p := range places {
			taken[p] = "Service " + r.name()
		}
		r.outcome.addresses, r.outcome.ports = wanted[r], r.ports()
	}
	return next
}

// answered returns those of some addresses of which it is known whether the Service's ports are
// free. wait is not 0 if the Service is to keep what it has until the others are known: it has
// none, or has them for other ports.
func (r *request) answered(m machines, addresses []netip.Addr, has map[place]bool, now time.Time) (known []netip.Addr, wait time.Duration) {
	var silent []netip.Addr
	for _, a := range addresses {
		if slices.ContainsFunc(r.places([]netip.Addr{a}), func(p place) bool { return !has[p] && m.state(p) == portUnknown }) {
			silent = append(silent, a)
		} else {
			known = append(known, a)
		}
	}
	if len(silent) == 0 {
		delete(m.asked, r.UID)
		return known, 0
	}
	if len(has) == 0 || slices.ContainsFunc(silent, func(a netip.Addr) bool { return slices.Contains(r.has, a) }) {
		if _, waits := m.asked[r.UID]; !waits {
			m.asked[r.UID] = now
		}
		if wait := m.asked[r.UID].Add(patience).Sub(now); wait > 0 {
			return nil, wait
		}
	}
	if len(known) == 0 {
		r.outcome.lacks(reasonPort, "the node of %s does not say which of its ports are free: it runs another kubelet, or an earlier Coracle",
			silent[0])
	}
	return known, 0
}

// hasPorts are the ports that the Service has by its status.
func (r *request) hasPorts() []corev1.PortStatus {
	for _, ingress := range r.Status.LoadBalancer.Ingress {
		return ingress.Ports // the same for all
	}
	return nil
}

// conflicts says of each place why the Service cannot have it. It returns whether one is busy that
// may become free unnoticed.
func (r *request) conflicts(m machines, places []place, taken map[place]string) (busy bool) {
	me := "Service " + r.name()
	for _, p := range places {
		all := place{protocol: p.protocol, port: p.port}
		switch {
		case taken[p] != "" && taken[p] != me:
			r.outcome.lacks(reasonPort, "port %d/%s of %s belongs to %s", p.port, p.protocol, p.address, taken[p])
		case m.nodePorts[all] != "" && m.nodePorts[all] != me:
			r.outcome.lacks(reasonPort, "port %d/%s of %s is a node port of %s", p.port, p.protocol, p.address, m.nodePorts[all])
		case p.protocol == corev1.ProtocolTCP && m.reserved[p.port] != "":
			r.outcome.lacks(reasonPort, "port %d/%s of %s belongs to %s", p.port, p.protocol, p.address, m.reserved[p.port])
		case taken[p] == "" && m.state(p) == portUsed:
			r.outcome.lacks(reasonPort, "port %d/%s of %s is used by a process of the node, or is a pod's host port", p.port, p.protocol, p.address)
			busy = true
		}
	}
	return busy
}

// granted are the places that a Service's status has. An address without ports means all of
// the Service's.
func granted(service *corev1.Service) map[place]bool {
	all := map[place]bool{}
	for _, ingress := range service.Status.LoadBalancer.Ingress {
		address, err := netip.ParseAddr(ingress.IP)
		if err != nil {
			continue
		}
		for _, port := range ingress.Ports {
			all[place{address, port.Protocol, port.Port}] = true
		}
		if len(ingress.Ports) > 0 {
			continue
		}
		for _, port := range service.Spec.Ports {
			all[place{address, port.Protocol, port.Port}] = true
		}
	}
	return all
}

// ports are those of the Service as its status has them.
func (r *request) ports() []corev1.PortStatus {
	var all []corev1.PortStatus
	for _, port := range r.Spec.Ports {
		all = append(all, corev1.PortStatus{Port: port.Port, Protocol: port.Protocol})
	}
	return all
}

// ofNodes returns those addresses of nodes that a Service asks for, or says why there is none.
func (r *request) ofNodes(addresses []netip.Addr) []netip.Addr {
	if len(r.outcome.problems) > 0 {
		return nil
	}
	if r.wants.IsValid() {
		if !slices.Contains(addresses, r.wants) {
			r.outcome.lacks(reasonOutside, "spec.loadBalancerIP %s is not an address of a node that can take the connections", r.wants)
			return nil
		}
		return []netip.Addr{r.wants}
	}
	var all []netip.Addr
	for _, ipv6 := range r.families() {
		before := len(all)
		for _, a := range addresses {
			if a.Is6() == ipv6 {
				all = append(all, a)
			}
		}
		if len(all) == before && r.all() {
			all = nil
			break
		}
	}
	if len(all) == 0 {
		r.outcome.lacks(reasonNoNode,
			"no node has an address of the Service's families that other machines reach: name addresses with --load-balancer-cidr")
	}
	return all
}

// places are the ports of the Service at some addresses.
func (r *request) places(addresses []netip.Addr) []place {
	var all []place
	for _, a := range addresses {
		for _, port := range r.Spec.Ports {
			all = append(all, place{a, port.Protocol, port.Port})
		}
	}
	return all
}

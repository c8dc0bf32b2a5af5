package loadbalancer

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
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
	// busy says that something on this node uses a place.
	busy func(place) bool
}

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
// oldest gets it first. It returns whether a place is busy that may become free unnoticed.
func fromNodes(m machines, all []*request, others []*corev1.Service) (again bool) {
	taken := map[place]string{}
	for _, service := range others { // the proxy routes what they have
		for p := range granted(service) {
			taken[p] = "Service " + service.Namespace + "/" + service.Name
		}
	}
	wanted := map[*request][]netip.Addr{}
	holds := map[*request]bool{}
	for _, r := range all {
		wanted[r] = r.ofNodes(m.addresses(r.Service))
		has := granted(r.Service)
		for _, p := range r.places(wanted[r]) {
			if has[p] && taken[p] == "" {
				taken[p], holds[r] = "Service "+r.name(), true
			}
		}
	}
	for _, r := range all {
		if len(wanted[r]) == 0 || r.DeletionTimestamp != nil && !holds[r] {
			continue
		}
		before, places := len(r.outcome.problems), r.places(wanted[r])
		again = r.conflicts(m, places, taken) || again
		if len(r.outcome.problems) > before {
			continue
		}
		for _, p := range places {
			taken[p] = "Service " + r.name()
		}
		r.outcome.addresses, r.outcome.ports = wanted[r], r.ports()
	}
	return again
}

// conflicts says of each place why the Service cannot have it. It returns whether one is busy that
// may become free unnoticed.
func (r *request) conflicts(m machines, places []place, taken map[place]string) (again bool) {
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
		case taken[p] == "" && m.busy(p):
			r.outcome.lacks(reasonPort, "port %d/%s of %s is used by a process of the node, or is a pod's host port", p.port, p.protocol, p.address)
			again = true
		}
	}
	return again
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

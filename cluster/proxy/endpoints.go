package proxy

import (
	"cmp"
	"net/netip"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	upstream "k8s.io/kubernetes/pkg/proxy"
	utilnet "k8s.io/utils/net"
)

// endpointLists are the EndpointSlices of one address family. Handlers of informers change them;
// the loop makes endpoints of them when a port of a Service has changed. They are the informers'
// objects: upstream's EndpointSliceCache has copies of all endpoints in memory, makes each of them
// several times, and looks at all Services for a change of one.
type endpointLists struct {
	kind discoveryv1.AddressType

	mu      sync.Mutex
	slices  map[types.NamespacedName][]*discoveryv1.EndpointSlice // by Service, sorted; lists are never changed
	changed map[upstream.ServicePortName]bool
}

func newEndpointLists(family corev1.IPFamily) *endpointLists {
	return &endpointLists{
		kind:    discoveryv1.AddressType(family),
		slices:  map[types.NamespacedName][]*discoveryv1.EndpointSlice{},
		changed: map[upstream.ServicePortName]bool{},
	}
}

// update takes a slice that is new, has changed or is gone. It reports whether that is of the
// family.
func (l *endpointLists) update(slice *discoveryv1.EndpointSlice, gone bool) bool {
	service := types.NamespacedName{Namespace: slice.Namespace, Name: slice.Labels[discoveryv1.LabelServiceName]}
	if slice.AddressType != l.kind || service.Name == "" {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	all := l.slices[service]
	at, exists := slices.BinarySearchFunc(all, slice.Name, func(s *discoveryv1.EndpointSlice, name string) int {
		return cmp.Compare(s.Name, name)
	})
	if gone && !exists {
		return false
	}
	after := at
	if exists {
		l.note(service, all[at])
		after++
	}
	now := make([]*discoveryv1.EndpointSlice, 0, len(all)+1)
	now = append(now, all[:at]...)
	if !gone {
		l.note(service, slice)
		now = append(now, slice)
	}
	if now = append(now, all[after:]...); len(now) == 0 {
		delete(l.slices, service)
	} else {
		l.slices[service] = now
	}
	return true
}

// note notes that the ports of a slice have changed.
func (l *endpointLists) note(service types.NamespacedName, slice *discoveryv1.EndpointSlice) {
	for _, port := range slice.Ports {
		if name, ok := portName(service, port); ok {
			l.changed[name] = true
		}
	}
}

// take returns the ports that have changed since the last time.
func (l *endpointLists) take() map[upstream.ServicePortName]bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.changed) == 0 {
		return nil
	}
	changed := l.changed
	l.changed = map[upstream.ServicePortName]bool{}
	return changed
}

// portName is the port of the Service that a slice's port is for, if that has a name and a number,
// as upstream asks for.
func portName(service types.NamespacedName, port discoveryv1.EndpointPort) (name upstream.ServicePortName, ok bool) {
	if port.Name == nil || port.Port == nil || *port.Port == 0 {
		return name, false
	}
	name = upstream.ServicePortName{NamespacedName: service, Port: *port.Name, Protocol: corev1.ProtocolTCP}
	if port.Protocol != nil {
		name.Protocol = *port.Protocol
	}
	return name, true
}

// endpointRoom is memory for endpoints that are looked at and forgotten.
type endpointRoom struct {
	found []endpoint
	list  []upstream.Endpoint
}

// endpoints are those of a port, seen from a node, until room is used again.
func (l *endpointLists) endpoints(name upstream.ServicePortName, node string, room *endpointRoom) []upstream.Endpoint {
	l.mu.Lock()
	all := l.slices[name.NamespacedName]
	l.mu.Unlock()
	found := room.found[:0]
	for _, slice := range all {
		for _, port := range slice.Ports {
			if of, ok := portName(name.NamespacedName, port); ok && of == name {
				found = slices.Grow(found, len(slice.Endpoints))
				found = appendEndpoints(found, slice.Endpoints, uint16(*port.Port), node)
			}
		}
	}
	found = distinct(found)
	list := room.list[:0]
	for i := range found {
		list = append(list, &found[i])
	}
	room.found, room.list = found, list
	return list
}

func appendEndpoints(found []endpoint, endpoints []discoveryv1.Endpoint, port uint16, node string) []endpoint {
	for i := range endpoints {
		e := endpoint{Endpoint: &endpoints[i]}
		if len(e.Addresses) == 0 {
			continue
		}
		e.target = netip.AddrPortFrom(parseAddress(e.Addresses[0]), port)
		e.local = node != "" && e.NodeName != nil && *e.NodeName == node
		if e.Hints != nil {
			e.zones, e.nodes = sets.Set[string]{}, sets.Set[string]{}
			for _, zone := range e.Hints.ForZones {
				e.zones.Insert(zone.Name)
			}
			for _, node := range e.Hints.ForNodes {
				e.nodes.Insert(node.Name)
			}
		}
		found = append(found, e)
	}
	return found
}

// distinct sorts endpoints, and leaves one for each address: while one moves from a slice to
// another it may be in both, and the address of a pod that ends may be another pod's already. So it
// is one that does not end, if there is one, as with upstream.
func distinct(found []endpoint) []endpoint {
	slices.SortStableFunc(found, func(a, b endpoint) int {
		if c := a.target.Compare(b.target); c != 0 {
			return c
		}
		switch {
		case a.IsTerminating() == b.IsTerminating():
			return 0
		case a.IsTerminating():
			return 1
		}
		return -1
	})
	return slices.CompactFunc(found, func(a, b endpoint) bool { return a.target == b.target })
}

// parseAddress returns the zero Addr for what is no address. As upstream, it takes leading zeros.
func parseAddress(text string) netip.Addr {
	a, err := netip.ParseAddr(text)
	if err != nil {
		a, _ = netip.AddrFromSlice(utilnet.ParseIPSloppy(text))
	}
	if a.Zone() != "" {
		return netip.Addr{}
	}
	return a.Unmap()
}

// endpoint is one of a port (upstream.Endpoint).
type endpoint struct {
	*discoveryv1.Endpoint
	target       netip.AddrPort // the address is the zero Addr if it was none
	local        bool
	zones, nodes sets.Set[string]
}

func (e *endpoint) String() string { return e.target.String() }

// IP is the address as a text.
func (e *endpoint) IP() string { return e.target.Addr().String() }

// Port is the port.
func (e *endpoint) Port() int { return int(e.target.Port()) }

// IsLocal says whether it is on this node.
func (e *endpoint) IsLocal() bool { return e.local }

// IsReady says whether it is to get connections.
func (e *endpoint) IsReady() bool { return e.Conditions.Ready == nil || *e.Conditions.Ready }

// IsServing says whether it can take connections, though it may be terminating.
func (e *endpoint) IsServing() bool { return e.Conditions.Serving == nil || *e.Conditions.Serving }

// IsTerminating says whether it is being deleted.
func (e *endpoint) IsTerminating() bool {
	return e.Conditions.Terminating != nil && *e.Conditions.Terminating
}

// ZoneHints are the zones that it is for.
func (e *endpoint) ZoneHints() sets.Set[string] { return e.zones }

// NodeHints are the nodes that it is for.
func (e *endpoint) NodeHints() sets.Set[string] { return e.nodes }

package proxy

import (
	"fmt"
	"maps"
	"net"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	upstream "k8s.io/kubernetes/pkg/proxy"

	"github.com/coracle-project/coracle/cluster/internal/conntrack"
)

const (
	// searchPause is how long after a change, at least, stale connections are looked for. The kernel
	// walks the whole table of its connection tracker for that: 5 ms in an empty one.
	searchPause = 500 * time.Millisecond
	// searchShare is which part of the time a search may take: each connection that it looks at
	// takes 3 µs.
	searchShare = 20
)

// A search removes from the kernel's connection tracker what leads to endpoints that are gone, and
// carries nothing any more: connections that were never established, or those that both ends have
// closed, or that one has reset. The tracker keeps them for a while: 10 s to two minutes
// (Documentation/networking/nf_conntrack-sysctl.rst, nf_conntrack_tcp_timeout_close, _last_ack,
// _syn_sent). Meanwhile it ignores that a client begins a new connection from the same port, and
// sends that to the same endpoint. Connections that carry something stay: an endpoint that gets no
// new ones may still serve them.
type search struct {
	// established ones are many more, so that the two kinds are looked for apart.
	established bool

	ports   portsOf          // to be looked at
	due     <-chan time.Time // nil while nothing is, or the search runs
	running portsOf          // nil unless it does
	rest    time.Time        // until when
}

// portsOf are ports of Services of each family.
type portsOf map[*translation]map[upstream.ServicePortName]bool

func (p portsOf) add(f *translation, ports map[upstream.ServicePortName]bool) {
	if p[f] == nil {
		p[f] = map[upstream.ServicePortName]bool{}
	}
	maps.Copy(p[f], ports)
}

// note has the connections to some ports looked at.
func (s *search) note(f *translation, ports map[upstream.ServicePortName]bool) {
	if len(ports) == 0 {
		return
	}
	if s.ports == nil {
		s.ports = portsOf{}
	}
	s.ports.add(f, ports)
	s.schedule()
}

func (s *search) schedule() {
	if s.due == nil && s.running == nil && len(s.ports) > 0 {
		s.due = time.After(max(searchPause, time.Until(s.rest)))
	}
}

// begin begins a search. What it returns does it, in any goroutine.
func (s *search) begin() (run func() searched) {
	s.running, s.ports, s.due = s.ports, nil, nil
	wanted := map[frontend]map[netip.AddrPort]bool{}
	for f, ports := range s.running {
		for name := range ports {
			f.wanted(name, wanted)
		}
	}
	if len(wanted) == 0 {
		return func() searched { return searched{} }
	}
	tracker, err := conntrack.Open() // of this thread's network namespace
	if err != nil {
		return func() searched { return searched{err: err} }
	}
	return func() searched {
		defer tracker.Close()
		began := time.Now()
		err := s.forget(tracker, wanted)
		return searched{time.Since(began), err}
	}
}

// searched is what came of a search.
type searched struct {
	took time.Duration
	err  error
}

// end takes what came of the search. After an error its ports are looked at with the next ones.
func (s *search) end(r searched) {
	before := s.running
	s.running, s.rest = nil, time.Now().Add(searchShare*r.took)
	s.schedule()
	if r.err == nil {
		return
	}
	for f, ports := range s.ports {
		before.add(f, ports)
	}
	s.ports = before
}

// frontend is where clients reach a port of a Service. The address is the unspecified one of its
// family for a node port, which has many.
type frontend struct {
	at       netip.AddrPort
	protocol byte
}

// noteConnections has the connections to a port looked at.
func (t *translation) noteConnections(name upstream.ServicePortName) {
	if name.Protocol != corev1.ProtocolUDP { // flows of UDP are ended by upstream's CleanStaleEntries
		t.connections[name] = true
	}
}

// forget removes the connections to frontends that lead to none of the endpoints.
func (s *search) forget(tracker *conntrack.Tracker, wanted map[frontend]map[netip.AddrPort]bool) error {
	var failed error
	err := tracker.ListTranslated(s.established, func(e *conntrack.Entry) bool {
		carries := e.Established && e.State != conntrack.LastAck && e.State != conntrack.Closed
		if !carries && stale(e, wanted) {
			if _, err := tracker.Delete(e); err != nil {
				failed = fmt.Errorf("forget the connection from %s to %s: %w", e.Original.Source, e.Original.Destination, err)
			}
		}
		return true
	})
	if err != nil {
		return fmt.Errorf("list connections: %w", err)
	}
	return failed
}

// wanted adds where connections to a port may lead. Ports without endpoints are left out: clients
// gain nothing there.
func (t *translation) wanted(name upstream.ServicePortName, all map[frontend]map[netip.AddrPort]bool) {
	service, exists := t.portMap[name]
	protocol, known := protocols[name.Protocol]
	if !exists || !known {
		return
	}
	serving := map[netip.AddrPort]bool{}
	for _, e := range t.endpoints(name) {
		if e.IsServing() {
			serving[e.(*endpoint).target] = true
		}
	}
	if len(serving) == 0 {
		return
	}
	for _, ip := range append(append([]net.IP{service.ClusterIP()}, service.ExternalIPs()...), service.LoadBalancerVIPs()...) {
		if a, ok := netip.AddrFromSlice(ip); ok {
			all[frontend{netip.AddrPortFrom(a.Unmap(), uint16(service.Port())), protocol}] = serving
		}
	}
	if port := service.NodePort(); port != 0 {
		all[frontend{netip.AddrPortFrom(anyAddress(t.family == corev1.IPv6Protocol), uint16(port)), protocol}] = serving
	}
}

func anyAddress(ipv6 bool) netip.Addr {
	if ipv6 {
		return netip.IPv6Unspecified()
	}
	return netip.IPv4Unspecified()
}

// stale says whether a connection leads from a Service to what is not one of its endpoints.
func stale(e *conntrack.Entry, wanted map[frontend]map[netip.AddrPort]bool) bool {
	at := frontend{e.Original.Destination, e.Original.Protocol}
	serving, ok := wanted[at]
	if !ok {
		at.at = netip.AddrPortFrom(anyAddress(at.at.Addr().Is6()), at.at.Port())
		serving, ok = wanted[at]
	}
	return ok && !serving[e.Reply.Source]
}

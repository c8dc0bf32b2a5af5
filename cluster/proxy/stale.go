package proxy

import (
	"fmt"
	"net"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	upstream "k8s.io/kubernetes/pkg/proxy"

	"github.com/coracle-project/coracle/cluster/internal/conntrack"
)

const (
	// searchPause is how long after a change connections are looked for. A handshake that was under
	// way has ended by then. The kernel walks the whole table of its connection tracker for a search,
	// 5 ms if that is empty.
	searchPause = 500 * time.Millisecond
	// restFactor: a search rests for so many times as long as it took. Each connection takes 3 µs.
	restFactor = 20
	// failurePause is before a search that failed is repeated.
	failurePause = 30 * time.Second
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

	changed   changedPorts     // to be looked at
	due       <-chan time.Time // nil while nothing is, or the search runs
	running   changedPorts     // nil unless it does
	restUntil time.Time
}

// changedPorts are ports of Services, and when each changed last.
type changedPorts map[*translation]map[upstream.ServicePortName]time.Time

func (c changedPorts) add(f *translation, name upstream.ServicePortName, at time.Time) {
	if c[f] == nil {
		c[f] = map[upstream.ServicePortName]time.Time{}
	}
	if at.After(c[f][name]) {
		c[f][name] = at
	}
}

// note takes the ports whose endpoints have changed.
func (s *search) note(f *translation, ports map[upstream.ServicePortName]bool) {
	if s.changed == nil {
		s.changed = changedPorts{}
	}
	for name := range ports {
		s.changed.add(f, name, time.Now())
	}
	s.schedule()
}

// schedule sets when the next search is due: a pause after the change that is longest ago.
func (s *search) schedule() {
	if s.due != nil || s.running != nil {
		return
	}
	var first time.Time
	for _, ports := range s.changed {
		for _, at := range ports {
			if first.IsZero() || at.Before(first) {
				first = at
			}
		}
	}
	if !first.IsZero() {
		s.due = time.After(max(time.Until(first.Add(searchPause)), time.Until(s.restUntil)))
	}
}

// begin prepares a search of what changed before the pause. run does it, in any goroutine.
func (s *search) begin() (run func() searchResult) {
	all := s.changed
	s.changed, s.running, s.due = changedPorts{}, changedPorts{}, nil
	wanted := map[frontend]map[netip.AddrPort]bool{}
	for f, ports := range all {
		for name, at := range ports {
			if time.Since(at) < searchPause {
				s.changed.add(f, name, at)
				continue
			}
			s.running.add(f, name, at)
			f.wanted(name, wanted)
		}
	}
	if len(wanted) == 0 {
		return func() searchResult { return searchResult{} }
	}
	tracker, err := conntrack.Open() // of this thread's network namespace
	if err != nil {
		return func() searchResult { return searchResult{err: err} }
	}
	return func() searchResult {
		defer tracker.Close()
		began := time.Now()
		err := s.forget(tracker, wanted)
		return searchResult{time.Since(began), err}
	}
}

type searchResult struct {
	took time.Duration
	err  error
}

// finish takes what came of a search. One that failed is repeated.
func (s *search) finish(r searchResult) {
	s.restUntil = time.Now().Add(restFactor * r.took)
	if r.err != nil {
		s.restUntil = time.Now().Add(failurePause)
		for f, ports := range s.running {
			for name, at := range ports {
				s.changed.add(f, name, at)
			}
		}
	}
	s.running = nil
	s.schedule()
}

// frontend is where clients reach a port of a Service. The address is the unspecified one of its
// family for a node port, which has many.
type frontend struct {
	at       netip.AddrPort
	protocol byte
}

// noteConnections notes a port whose endpoints have changed.
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

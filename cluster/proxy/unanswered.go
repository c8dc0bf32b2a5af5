package proxy

import (
	"fmt"
	"net"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	upstream "k8s.io/kubernetes/pkg/proxy"

	"github.com/coracle-project/coracle/internal/conntrack"
)

// unansweredPause is how long after a change, at least, unanswered connections are looked for. The
// kernel walks the whole table of its connection tracker for that: 5 ms in an empty one.
const unansweredPause = 500 * time.Millisecond

// frontend is where clients reach a port of a Service. The address is the unspecified one of its
// family for a node port, which has many.
type frontend struct {
	at       netip.AddrPort
	protocol byte
}

// noteConnections has the connections to a port looked at that nothing has answered, if the port is
// there. A port that is gone is forgotten: while connections cannot be looked at, ports that come
// and go would be kept without a limit.
func (t *translation) noteConnections(name upstream.ServicePortName) {
	if _, exists := t.portMap[name]; !exists {
		delete(t.connections, name)
		return
	}
	if name.Protocol != corev1.ProtocolUDP { // flows of UDP are ended by upstream's CleanStaleEntries
		t.connections[name] = true
	}
}

// unanswered removes what the kernel's connection tracker has of connections that lead to endpoints
// which are gone, and that nothing has answered. Such an entry lasts as long as the client tries,
// and two minutes (Documentation/networking/nf_conntrack-sysctl.rst,
// nf_conntrack_tcp_timeout_syn_sent): the client's next try would go to the same endpoint, and so
// would another connection from the same port. Connections that are established stay: an endpoint
// that gets no new ones may still serve them.
func (p *Proxy) unanswered() error {
	wanted := map[frontend]map[netip.AddrPort]bool{}
	for _, f := range p.families {
		for name := range f.connections {
			f.wanted(name, wanted)
		}
	}
	if len(wanted) > 0 {
		if err := forget(wanted); err != nil {
			return err // the next time looks for them, too
		}
	}
	for _, f := range p.families {
		clear(f.connections)
	}
	return nil
}

// forget removes the unanswered connections to frontends that lead to none of the endpoints.
func forget(wanted map[frontend]map[netip.AddrPort]bool) error {
	tracker, err := conntrack.Open()
	if err != nil {
		return err
	}
	defer tracker.Close()
	var failed error
	err = tracker.ListUnanswered(func(e *conntrack.Entry) bool {
		if stale(e, wanted) {
			if _, err := tracker.Delete(e); err != nil {
				failed = fmt.Errorf("forget the connection from %s to %s: %w", e.Original.Source, e.Original.Destination, err)
			}
		}
		return true
	})
	if err != nil {
		return fmt.Errorf("list unanswered connections: %w", err)
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

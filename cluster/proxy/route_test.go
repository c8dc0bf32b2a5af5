package proxy

import (
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/cluster/proxy/testnet"
)

// route is what Route says of a connection.
func (c *testCluster) route(from *testnet.Space, network, address string) (r *Route, ok bool) {
	c.t.Helper()
	destination, source, protocol := netip.MustParseAddrPort(address), from.IPv4, byte(unix.IPPROTO_TCP)
	if destination.Addr().Is6() {
		source = from.IPv6
	}
	if strings.HasPrefix(network, "udp") {
		protocol = unix.IPPROTO_UDP
	}
	var err error
	c.Within(func() { r, ok, err = c.proxy.Route(source, destination, protocol) })
	if err != nil {
		c.t.Fatal(err)
	}
	return r, ok
}

// routes checks that Route says of a connection what its packets have just shown: each test of the
// rules is one of Route. want is "POD SOURCE", where SOURCE is the address that the pod saw, or
// "refused", or "dropped".
func (c *testCluster) routes(from *testnet.Space, network, address, want string) {
	c.t.Helper()
	r, ok := c.route(from, network, address)
	destination, source := netip.MustParseAddrPort(address), from.IPv4
	if destination.Addr().Is6() {
		source = from.IPv6
	}
	if !ok {
		// What no Service has, the node answers itself.
		if node := destination.Addr() == c.IPv4 || destination.Addr() == c.IPv6; !node || want != "refused" {
			c.t.Errorf("Route knows no Service of %s %s from %s, want %s", network, address, from.Name, want)
		}
		return
	}
	if (r.Refused != "") != (want == "refused") || (r.Dropped != "") != (want == "dropped") {
		c.t.Errorf("Route of %s %s from %s: %+v, want %s", network, address, from.Name, r, want)
	}
	name, seen, answered := strings.Cut(want, " ")
	if !answered {
		return
	}
	pod := map[string]*testnet.Space{"a": c.a, "b": c.b}[name]
	endpoint := pod.IPv4
	if source.Is6() {
		endpoint = pod.IPv6
	}
	if !slices.ContainsFunc(r.Endpoints, func(e netip.AddrPort) bool { return e.Addr() == endpoint }) {
		c.t.Errorf("Route of %s %s from %s: %+v does not have %s", network, address, from.Name, r, endpoint)
	}
	// A pod that reaches itself gets the node's address as source, whatever the frontend says.
	if source != endpoint && r.Masquerade != (seen != source.String()) {
		c.t.Errorf("Route of %s %s from %s: %+v, but the source was %s", network, address, from.Name, r, seen)
	}
	if r.Service.Name == "" || r.Way == "" {
		c.t.Errorf("Route of %s %s from %s: %+v", network, address, from.Name, r)
	}
}

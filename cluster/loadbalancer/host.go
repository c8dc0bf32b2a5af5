package loadbalancer

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/cluster/internal/ipnet"
)

// podRoutes is the protocol of coracled's routes (network/link.go). The one without an interface is
// for the whole range of its pods.
const podRoutes = 85

// CheckPods refuses a pool with addresses of coracled's pods, as far as this machine has routes for
// them.
func CheckPods(p Pool) error {
	if p.Empty() {
		return nil
	}
	routes, err := routes()
	if err != nil {
		return err
	}
	for _, r := range routes {
		if to, ok := ipnet.Prefix(r.Dst); ok && r.Protocol == podRoutes && r.Type == unix.RTN_UNREACHABLE && p.Overlaps(to) {
			return fmt.Errorf("--load-balancer-cidr %s overlaps %s, the range of pods: choose addresses of the node's network that nothing else has",
				p, to)
		}
	}
	return nil
}

// CheckHost refuses a pool that takes something from this machine: its own addresses, its gateways,
// its pods, or networks that it has routes to. Routes of the interface sink, which is the
// announcer's, do not count. A larger network around the pool is what its addresses are for.
func CheckHost(p Pool, sink string) error {
	if p.Empty() {
		return nil
	}
	if err := CheckPods(p); err != nil {
		return err
	}
	addresses, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) { // pods come and go
		return fmt.Errorf("list addresses: %w", err)
	}
	refused := func(what string, args ...any) error {
		return fmt.Errorf("--load-balancer-cidr %s has %s: leave that out, as in 192.168.1.240-192.168.1.250", p, fmt.Sprintf(what, args...))
	}
	for _, a := range addresses {
		if own, ok := ipnet.Prefix(a.IPNet); ok && p.Overlaps(netip.PrefixFrom(own.Addr(), own.Addr().BitLen())) {
			return refused("%s, an address of %s", own.Addr(), linkName(a.LinkIndex))
		}
	}
	all, err := routes()
	if err != nil {
		return err
	}
	ours := 0
	if l, err := net.InterfaceByName(sink); err == nil {
		ours = l.Index
	}
	for _, r := range all {
		if gateway, ok := netip.AddrFromSlice(r.Gw); ok && p.Overlaps(netip.PrefixFrom(gateway.Unmap(), gateway.Unmap().BitLen())) {
			return refused("%s, a gateway by %s", gateway.Unmap(), linkName(r.LinkIndex))
		}
		if to, ok := ipnet.Prefix(r.Dst); ok && r.Type == unix.RTN_UNICAST && (r.LinkIndex != ours || ours == 0) && p.covers(to) {
			return refused("%s, to which there is a route by %s", to, linkName(r.LinkIndex))
		}
	}
	return nil
}

// routes returns those of all tables but the kernel's own.
func routes() ([]netlink.Route, error) {
	all, err := netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	var others []netlink.Route
	for _, r := range all {
		if r.Table != unix.RT_TABLE_LOCAL {
			others = append(others, r)
		}
	}
	return others, nil
}

// linkName is an interface's name, or its index if it has gone.
func linkName(index int) string {
	if l, err := net.InterfaceByIndex(index); err == nil {
		return l.Name
	}
	return fmt.Sprintf("interface %d", index)
}

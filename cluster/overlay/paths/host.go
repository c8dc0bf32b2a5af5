package paths

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/cluster/internal/ipnet"
)

// Way is how this machine's kernel sends packets to an address of another node.
type Way struct {
	// Link is the index of the link, and MTU that of the link or the route.
	Link, MTU int
	// Direct is whether there is no gateway on the way: both nodes are on the link.
	Direct bool
}

// Host is what this machine has, apart from the paths to other nodes.
type Host struct {
	// Addresses are the machine's own.
	Addresses map[netip.Addr]bool
	// Ways has no entry for an address that there is no route to.
	Ways map[netip.Addr]Way
	// Taken are the machine's own networks and addresses, and those of the cluster that belong to
	// no node, such as its Services'.
	Taken []Taken
	// Pods are the networks of the cluster's pods, in which each node's range must be; empty if they
	// are not known.
	Pods []netip.Prefix
}

// Taken is a network that ranges of pods and addresses of nodes must leave alone.
type Taken struct {
	Net  netip.Prefix
	What string // for people, such as "an address of eth0"
	// Nodes is whether nodes may have addresses in Net, Ranges whether a part of it may be a range
	// of pods.
	Nodes, Ranges bool
}

// Look reads what the machine has, and how it reaches the addresses of nodes.
func (n *Network) Look(nodes []netip.Addr) (Host, error) {
	h := Host{Addresses: map[netip.Addr]bool{}, Ways: map[netip.Addr]Way{}}
	links, err := n.kernel.links()
	if err != nil {
		return h, fmt.Errorf("list links: %w", err)
	}
	addresses, err := n.kernel.AddrList(nil, netlink.FAMILY_ALL)
	if settled(err) != nil {
		return h, fmt.Errorf("list addresses: %w", err)
	}
	for _, a := range addresses {
		p, ok := ipnet.Prefix(a.IPNet)
		l := links[a.LinkIndex]
		if !ok || p.Addr().IsLinkLocalUnicast() || n.ours(l) || uint32(l.Group)&groupMask == podGroups {
			continue
		}
		h.Addresses[p.Addr()] = true
		h.take(netip.PrefixFrom(p.Addr(), p.Addr().BitLen()), "an address of "+l.Name, false, false)
	}
	routes, err := n.kernel.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
	if settled(err) != nil {
		return h, fmt.Errorf("list routes: %w", err)
	}
	for _, r := range routes {
		n.takeRoute(&h, r, links)
	}
	for _, a := range nodes {
		if way, ok := n.kernel.way(a, links); ok && !h.Addresses[a] {
			h.Ways[a] = way
		}
	}
	return h, nil
}

func (h *Host) take(p netip.Prefix, what string, nodes, ranges bool) {
	h.Taken = append(h.Taken, Taken{Net: p.Masked(), What: what, Nodes: nodes, Ranges: ranges})
}

// ours reports whether a link is a tunnel's device of this cluster.
func (n *Network) ours(l netlink.LinkAttrs) bool {
	return slices.ContainsFunc(underlays, func(u Underlay) bool { return l.Name == DeviceOf(n.Cluster, u) })
}

// takeRoute notes what a route leads to. Default routes lead to the rest.
func (n *Network) takeRoute(h *Host, r netlink.Route, links map[int]netlink.LinkAttrs) {
	l := links[r.LinkIndex]
	to, ok := ipnet.Prefix(r.Dst)
	pod := uint32(l.Group)&groupMask == podGroups
	if marked(r, n.Cluster) || n.ours(l) ||
		pod && slices.ContainsFunc(n.Node.Ranges, func(own netip.Prefix) bool { return own.Contains(to.Addr()) }) {
		return
	}
	if gateway, ok := gatewayOf(r); ok && !gateway.IsLinkLocalUnicast() {
		h.take(netip.PrefixFrom(gateway, gateway.BitLen()), "a gateway by "+l.Name, true, false)
	}
	if !ok || to.Bits() == 0 || to.Addr().IsLinkLocalUnicast() || to.Addr().IsMulticast() {
		return
	}
	switch {
	case r.Type == unix.RTN_BROADCAST || r.Type == unix.RTN_ANYCAST || r.Type == unix.RTN_MULTICAST:
		h.take(to, "for several machines, by "+l.Name, false, false)
	case r.Type == unix.RTN_LOCAL: // an address, or 127.0.0.0/8
		h.take(to, "this machine's own, by "+l.Name, false, false)
	case pod:
		h.take(to, "the address of a pod of this machine", false, false)
	case r.Protocol == podRoutes: // perhaps a larger range, from before this node had one of its own
		h.take(to, "a range of this machine's pods", false, true)
	case r.Type != unix.RTN_UNICAST:
		h.take(to, "a network that this machine has closed", true, false)
	case !hasGateway(r):
		h.take(to, "the network of "+l.Name, true, false)
	default:
		h.take(to, "a network with a route by "+l.Name, true, true)
	}
}

// hasGateway reports whether packets go to what the route is for by another machine.
func hasGateway(r netlink.Route) bool { return r.Gw != nil || r.Via != nil || len(r.MultiPath) > 0 }

// gatewayOf is the gateway of a route that has one. A route of IPv4 may have one with an address of
// IPv6 (RTA_VIA, rtnetlink(7)).
func gatewayOf(r netlink.Route) (netip.Addr, bool) {
	gateway := r.Gw
	if via, ok := r.Via.(*netlink.Via); ok {
		gateway = via.Addr
	}
	a, ok := netip.AddrFromSlice(gateway)
	return a.Unmap(), ok
}

// way asks for the route to an address.
func (k *kernel) way(a netip.Addr, links map[int]netlink.LinkAttrs) (Way, bool) {
	routes, err := k.RouteGet(a.AsSlice())
	if err != nil || len(routes) != 1 {
		return Way{}, false
	}
	r := routes[0]
	l, ok := links[r.LinkIndex]
	if r.Type != unix.RTN_UNICAST || !ok || l.Flags&net.FlagLoopback != 0 {
		return Way{}, false
	}
	w := Way{Link: r.LinkIndex, MTU: l.MTU, Direct: !hasGateway(r) && l.RawFlags&(unix.IFF_NOARP|unix.IFF_POINTOPOINT) == 0}
	if r.MTU != 0 {
		w.MTU = min(w.MTU, r.MTU)
	}
	return w, true
}

func (k *kernel) links() (map[int]netlink.LinkAttrs, error) {
	all := map[int]netlink.LinkAttrs{}
	const tries = 8
	for try := 1; ; try++ {
		links, err := k.LinkList()
		if err != nil && (try == tries || !errors.Is(err, netlink.ErrDumpInterrupted)) {
			return nil, err
		}
		if err == nil {
			for _, l := range links {
				all[l.Attrs().Index] = *l.Attrs()
			}
			return all, nil
		}
	}
}

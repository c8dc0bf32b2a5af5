package paths

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/cluster/internal/ipnet"
)

// list reads what there is, except the rules.
func (k *kernel) list() (Plan, error) {
	have := New(Node{}, nil)
	k.index = map[Underlay]int{}
	for _, u := range underlays {
		if err := k.listDevice(u, &have); err != nil {
			return have, fmt.Errorf("list %s: %w", DeviceOf(k.Cluster, u), err)
		}
	}
	if err := k.listRoutes(&have); err != nil {
		return have, fmt.Errorf("list routes: %w", err)
	}
	return have, nil
}

func (k *kernel) listDevice(u Underlay, have *Plan) error {
	l, err := k.LinkByName(DeviceOf(k.Cluster, u))
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return nil
	}
	if err != nil {
		return err
	}
	at := l.Attrs()
	k.index[u] = at.Index
	have.Devices[u] = k.deviceOf(u, l)
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		addresses, err := k.AddrList(l, family)
		if settled(err) != nil {
			return err
		}
		for _, a := range addresses {
			if p, ok := ipnet.Prefix(a.IPNet); ok && !p.Addr().IsLinkLocalUnicast() {
				have.Addresses[Address{u, p.Addr()}] = struct{}{}
			}
		}
		neighbours, err := k.NeighList(at.Index, family)
		if settled(err) != nil {
			return err
		}
		for _, n := range neighbours {
			if key, mac, ok := neighbourOf(u, n); ok {
				have.Neighbours[key] = mac
			}
		}
	}
	forward, err := k.NeighList(at.Index, unix.AF_BRIDGE)
	if settled(err) != nil {
		return err
	}
	for _, n := range forward {
		if key, far, ok := farOf(u, n); ok {
			have.Forward[key] = far
		}
	}
	return nil
}

// deviceOf is the device as it is, the zero Device if it is none that could be ours.
func (k *kernel) deviceOf(u Underlay, l netlink.Link) Device {
	if u == Encrypted {
		if l.Type() != "wireguard" {
			return Device{}
		}
		return Device{MTU: l.Attrs().MTU, Up: l.Attrs().Flags&net.FlagUp != 0}
	}
	v, ok := l.(*netlink.Vxlan)
	if !ok || v.VxlanId != k.VNI || v.Port != k.Port || v.Learning || v.HardwareAddr.String() != MACOf(k.Node.Name).hardware().String() {
		return Device{}
	}
	d := Device{MTU: v.MTU, Up: v.Flags&net.FlagUp != 0}
	if local, ok := netip.AddrFromSlice(v.SrcAddr); ok && !local.IsUnspecified() {
		d.Local = local.Unmap()
	}
	return d
}

func neighbourOf(u Underlay, n netlink.Neigh) (key Address, mac MAC, ok bool) {
	addr, ok := netip.AddrFromSlice(n.IP)
	if !ok || n.State&netlink.NUD_PERMANENT == 0 || len(n.HardwareAddr) != len(mac) {
		return key, mac, false
	}
	copy(mac[:], n.HardwareAddr)
	return Address{u, addr.Unmap()}, mac, !addr.IsMulticast()
}

func farOf(u Underlay, n netlink.Neigh) (key Far, far netip.Addr, ok bool) {
	far, ok = netip.AddrFromSlice(n.IP)
	if !ok || len(n.HardwareAddr) != len(key.MAC) {
		return key, far, false
	}
	key.Device = u
	copy(key.MAC[:], n.HardwareAddr)
	return key, far.Unmap(), true
}

func (k *kernel) listRoutes(have *Plan) error {
	for _, protocol := range []netlink.RouteProtocol{routeProtocol, closedProtocol} {
		routes, err := k.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Protocol: protocol}, netlink.RT_FILTER_PROTOCOL)
		if settled(err) != nil {
			return err
		}
		for _, r := range routes {
			if to, route, ok := k.routeOf(r); ok {
				have.Routes[to] = route
			}
		}
	}
	filter := &netlink.Route{Protocol: routeProtocol, Table: senders}
	routes, err := k.RouteListFiltered(netlink.FAMILY_ALL, filter, netlink.RT_FILTER_PROTOCOL|netlink.RT_FILTER_TABLE)
	if settled(err) != nil {
		return err
	}
	for _, r := range routes {
		if a, ok := k.senderOf(r); ok {
			have.Senders[a] = struct{}{}
		}
	}
	return nil
}

// senderOf is the peer's address that a route tells coracled of.
func (k *kernel) senderOf(r netlink.Route) (a netip.Addr, ok bool) {
	to, ok := ipnet.Prefix(r.Dst)
	return to.Addr(), ok && to.IsSingleIP() && r.Table == senders && marked(r, k.Cluster)
}

// routeOf is a route of ours.
func (k *kernel) routeOf(r netlink.Route) (to netip.Prefix, route Route, ok bool) {
	to, ok = ipnet.Prefix(r.Dst)
	if !ok || !marked(r, k.Cluster) {
		return to, route, false
	}
	if r.Protocol == closedProtocol {
		return to, Route{Closed: r.Type == unix.RTN_UNREACHABLE}, true
	}
	route.MTU = r.MTU
	if via, ok := netip.AddrFromSlice(r.Gw); ok {
		route.Via = via.Unmap()
	}
	if source, ok := netip.AddrFromSlice(r.Src); ok {
		route.Source = source.Unmap()
	}
	route.Link = r.LinkIndex
	for u, index := range k.index {
		if index == r.LinkIndex {
			route.Device, route.Link = u, 0
		}
	}
	return to, route, true
}

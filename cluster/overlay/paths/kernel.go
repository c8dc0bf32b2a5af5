package paths

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/cluster/nftable"
	"github.com/coracle-project/coracle/cluster/overlay/wireguard"
)

// routeProtocol marks our routes (rtm_protocol, rtnetlink(7)). The metric, which is the cluster's
// number, tells those of two clusters apart.
const routeProtocol = 86

// closedProtocol marks those that lead nowhere: coracled lets in packets of networks with the other
// one.
const closedProtocol = 87

// senders is the routing table that tells coracled which addresses other nodes have. Packets from
// them may go to pods, like those from networks that routes with routeProtocol lead to. No rule
// refers to this table (ip-rule(8)), so nothing is routed by it.
const senders = 86086

// marked reports whether a route is ours.
func marked(r netlink.Route, cluster int) bool {
	return (r.Protocol == routeProtocol || r.Protocol == closedProtocol) && r.Priority == cluster
}

// DeviceOf is the name of a tunnel's device. A machine may have several clusters.
func DeviceOf(cluster int, u Underlay) string {
	if u == Encrypted {
		return fmt.Sprintf("coraclewg-%d", cluster)
	}
	return fmt.Sprintf("coracle%d-%d", u, cluster)
}

var underlays = []Underlay{IPv4, IPv6, Encrypted}

// kernel lists and changes what a Plan is about, but for the rules.
type kernel struct {
	Config
	*netlink.Handle
	index   map[Underlay]int         // of the devices that exist
	sockets map[int]*nl.SocketHandle // for what Handle has no call for
	wires   *wireguard.Kernel        // nil without encryption
}

func openKernel(c Config) (*kernel, error) {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open netlink: %w", err)
	}
	s, err := nl.GetNetlinkSocketAt(netns.None(), netns.None(), unix.NETLINK_ROUTE)
	if err != nil {
		h.Close()
		return nil, fmt.Errorf("open netlink: %w", err)
	}
	k := &kernel{
		Config: c, Handle: h, index: map[Underlay]int{}, sockets: map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: {Socket: s}},
	}
	if c.Encryption != nil {
		if k.wires, err = wireguard.Open(); err != nil {
			k.close()
			return nil, err
		}
	}
	return k, nil
}

func (k *kernel) close() {
	k.Close()
	for _, s := range k.sockets {
		s.Close()
	}
	if k.wires != nil {
		k.wires.Close()
	}
}

// settled returns the error of a listing. That a list changed while it was read is no error: the
// notification causes another listing.
func settled(err error) error {
	if errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil
	}
	return err
}

func (m MAC) hardware() net.HardwareAddr { return m[:] }

// difference is what makes have what is wanted.
func difference[K, V comparable](have, want map[K]V) (put, gone map[K]V) {
	put, gone = map[K]V{}, map[K]V{}
	for k, v := range want {
		if had, ok := have[k]; !ok || had != v {
			put[k] = v
		}
	}
	for k, v := range have {
		if _, ok := want[k]; !ok {
			gone[k] = v
		}
	}
	return put, gone
}

// make adds and changes what is wanted. Packets always find the old path or the new one: what a
// route refers to is made before the route, and one message replaces a route.
func (k *kernel) make(ctx context.Context, have, want Plan) error {
	var errs []error
	note := func(what string, key any, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("%s %v: %w", what, key, err))
		}
	}
	put, _ := difference(have.Devices, want.Devices)
	for u, d := range put {
		note("device", DeviceOf(k.Cluster, u), k.putDevice(u, have.Devices[u], d))
	}
	if len(put) > 0 { // a device that was made again, or was down, has lost what it had
		again, err := k.list()
		if err != nil {
			return errors.Join(append(errs, err)...)
		}
		have = again
	}
	if !slices.EqualFunc(have.Encrypted, want.Encrypted, wireguard.Peer.Equal) {
		note("device", DeviceOf(k.Cluster, Encrypted), k.on(Encrypted, func(index int) error { return k.encrypt(index, want.Encrypted) }))
	}
	addresses, _ := difference(have.Addresses, want.Addresses)
	for a := range addresses {
		note("address", a.Addr, k.on(a.Device, func(index int) error {
			return k.AddrReplace(&netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: index}}, addressOf(a.Addr))
		}))
	}
	neighbours, _ := difference(have.Neighbours, want.Neighbours)
	for a, mac := range neighbours {
		note("neighbour", a.Addr, k.on(a.Device, func(index int) error { return k.NeighSet(neighbour(index, a.Addr, mac)) }))
	}
	forward, _ := difference(have.Forward, want.Forward)
	for f, to := range forward {
		note("forwarding entry for", to, k.on(f.Device, func(index int) error { return k.NeighSet(far(index, f.MAC, to)) }))
	}
	routes, _ := difference(have.Routes, want.Routes)
	for to, r := range routes {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		note("route to", to, k.route(to, r, k.RouteReplace))
	}
	addressesOfPeers, _ := difference(have.Senders, want.Senders)
	for a := range addressesOfPeers {
		if k.hasTables(familyOf(a)) {
			note("entry for", a, k.sender(a, k.RouteReplace))
		}
	}
	return errors.Join(errs...)
}

// remove takes out what is not wanted.
func (k *kernel) remove(have, want Plan) error {
	var errs []error
	note := func(what string, key any, err error, gone ...error) {
		for _, e := range gone {
			if errors.Is(err, e) {
				return
			}
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("remove %s %v: %w", what, key, err))
		}
	}
	_, routes := difference(have.Routes, want.Routes)
	for to, r := range routes {
		note("route to", to, k.route(to, r, k.RouteDel), unix.ESRCH, unix.ENODEV)
	}
	_, addressesOfPeers := difference(have.Senders, want.Senders)
	for a := range addressesOfPeers {
		note("entry for", a, k.sender(a, k.RouteDel), unix.ESRCH)
	}
	_, neighbours := difference(have.Neighbours, want.Neighbours)
	for a, mac := range neighbours {
		err := k.on(a.Device, func(index int) error { return k.NeighDel(neighbour(index, a.Addr, mac)) })
		note("neighbour", a.Addr, err, unix.ENOENT, unix.ENODEV)
	}
	_, forward := difference(have.Forward, want.Forward)
	for f, to := range forward {
		err := k.on(f.Device, func(index int) error { return k.NeighDel(far(index, f.MAC, to)) })
		note("forwarding entry for", to, err, unix.ENOENT, unix.ENODEV)
	}
	_, addresses := difference(have.Addresses, want.Addresses)
	for a := range addresses {
		note("address", a.Addr, k.on(a.Device, func(index int) error {
			return k.AddrDel(&netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: index}}, addressOf(a.Addr))
		}), unix.EADDRNOTAVAIL, unix.ENODEV)
	}
	_, devices := difference(have.Devices, want.Devices)
	for u := range devices {
		note("device", DeviceOf(k.Cluster, u), k.removeDevice(u))
	}
	return errors.Join(errs...)
}

// on calls f with the index of a device.
func (k *kernel) on(u Underlay, f func(index int) error) error {
	index, ok := k.index[u]
	if !ok {
		return unix.ENODEV
	}
	return f(index)
}

// route calls f with a route.
func (k *kernel) route(to netip.Prefix, r Route, f func(*netlink.Route) error) error {
	dst := &net.IPNet{IP: to.Addr().AsSlice(), Mask: net.CIDRMask(to.Bits(), to.Addr().BitLen())}
	if r.Closed {
		return f(&netlink.Route{Dst: dst, Type: unix.RTN_UNREACHABLE, Protocol: closedProtocol, Priority: k.Cluster})
	}
	link := r.Link
	if r.Device != None {
		index, ok := k.index[r.Device]
		if !ok {
			return unix.ENODEV
		}
		link = index
	}
	route := &netlink.Route{
		Dst: dst, LinkIndex: link, Gw: r.Via.AsSlice(), Src: r.Source.AsSlice(), MTU: r.MTU,
		// Forwarding heeds the MTU of a route of IPv6 only if it is locked.
		MTULock:  r.MTU != 0 && to.Addr().Is6(),
		Protocol: routeProtocol, Priority: k.Cluster,
	}
	switch {
	case to.Addr().Is4() && r.Via.IsValid(): // no address of the link leads to the hop
		route.Flags = int(netlink.FLAG_ONLINK)
	case to.Addr().Is4():
		route.Scope = netlink.SCOPE_LINK
	}
	return f(route)
}

// sender calls f with the route that tells coracled of a peer's address.
func (k *kernel) sender(a netip.Addr, f func(*netlink.Route) error) error {
	return f(&netlink.Route{
		Dst:  &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())},
		Type: unix.RTN_THROW, Table: senders, Protocol: routeProtocol, Priority: k.Cluster,
	})
}

// hasTables reports whether the kernel has several routing tables. Otherwise it would put a route
// of any table in the only one, and the peer could not be reached.
func (k *kernel) hasTables(f *nftable.Family) bool {
	rules, err := k.RuleList(int(f.Protocol)) // AF_INET, too, is NFPROTO_IPV4
	return settled(err) == nil && len(rules) > 0
}

func addressOf(a netip.Addr) *netlink.Addr {
	return &netlink.Addr{
		IPNet: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}, Flags: unix.IFA_F_NODAD | unix.IFA_F_NOPREFIXROUTE,
	}
}

func neighbour(index int, a netip.Addr, mac MAC) *netlink.Neigh {
	family := netlink.FAMILY_V4
	if a.Is6() {
		family = netlink.FAMILY_V6
	}
	return &netlink.Neigh{LinkIndex: index, Family: family, State: netlink.NUD_PERMANENT, IP: a.AsSlice(), HardwareAddr: mac.hardware()}
}

func far(index int, mac MAC, to netip.Addr) *netlink.Neigh {
	return &netlink.Neigh{
		LinkIndex: index, Family: unix.AF_BRIDGE, State: netlink.NUD_PERMANENT, Flags: netlink.NTF_SELF,
		IP: to.AsSlice(), HardwareAddr: mac.hardware(),
	}
}

// putDevice makes or changes a tunnel's device.
func (k *kernel) putDevice(u Underlay, have, want Device) error {
	name := DeviceOf(k.Cluster, u)
	if _, exists := k.index[u]; exists && have == (Device{}) { // another VNI, or someone else's
		if err := k.removeDevice(u); err != nil {
			return err
		}
	}
	if _, exists := k.index[u]; !exists {
		if err := k.addDevice(u, want); err != nil {
			return err
		}
		have = want
		have.Up = false
	}
	l := &netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: k.index[u], Name: name}}
	if have.MTU != want.MTU {
		if err := k.LinkSetMTU(l, want.MTU); err != nil {
			return fmt.Errorf("set its MTU to %d: %w", want.MTU, err)
		}
	}
	if have.Local != want.Local {
		if err := k.setLocal(u, want.Local); err != nil {
			return fmt.Errorf("send from %s: %w", want.Local, err)
		}
	}
	if have.Up {
		return nil
	}
	// A peer may use another path than this node: its packets are not spoofed.
	if err := os.WriteFile(filepath.Join("/proc/sys/net/ipv4/conf", name, "rp_filter"), []byte("2"), 0); err != nil {
		return err
	}
	err := k.LinkSetUp(l)
	if errors.Is(err, unix.EADDRINUSE) {
		return fmt.Errorf("UDP port %d is taken by another program of this machine: %w", k.Port, err)
	}
	return err
}

// encrypt gives the device its peers.
func (k *kernel) encrypt(index int, peers []wireguard.Peer) error {
	if k.wires == nil {
		return errors.New("there is no key to encrypt with")
	}
	d := wireguard.Device{Private: k.Encryption.Private, Port: k.Encryption.Port, Peers: slices.Clone(peers)}
	for i, p := range d.Peers {
		d.Peers[i].Endpoint = netip.AddrPortFrom(p.Endpoint.Addr(), uint16(d.Port))
	}
	err := k.wires.Set(index, d)
	if errors.Is(err, unix.EADDRINUSE) {
		return fmt.Errorf("UDP port %d is taken by another program of this machine: %w", d.Port, err)
	}
	return err
}

func (k *kernel) addEncrypted(want Device) (err error) {
	if k.wires == nil {
		return errors.New("there is no key to encrypt with")
	}
	k.index[Encrypted], err = k.wires.Add(DeviceOf(k.Cluster, Encrypted), want.MTU)
	if err != nil {
		delete(k.index, Encrypted)
	}
	return err
}

func (k *kernel) addDevice(u Underlay, want Device) error {
	if u == Encrypted {
		return k.addEncrypted(want)
	}
	l := &netlink.Vxlan{
		LinkAttrs: netlink.LinkAttrs{Name: DeviceOf(k.Cluster, u), MTU: want.MTU, HardwareAddr: MACOf(k.Node.Name).hardware()},
		VxlanId:   k.VNI, Port: k.Port, NoAge: true,
	}
	switch {
	case want.Local.IsValid():
		l.SrcAddr = want.Local.AsSlice()
	case u == IPv6: // by which the kernel knows the family
		l.SrcAddr = net.IPv6unspecified
	}
	err := k.LinkAdd(l)
	if errors.Is(err, unix.EEXIST) || errors.Is(err, unix.EADDRINUSE) {
		return fmt.Errorf("%w: %w", k.sameTunnel(), err)
	}
	if err != nil {
		return err
	}
	k.index[u] = l.Index
	if err := k.LinkSetIP6AddrGenMode(l, nl.IN6_ADDR_GEN_MODE_NONE); err != nil && !errors.Is(err, unix.EAFNOSUPPORT) {
		return fmt.Errorf("switch its link-local address off: %w", err)
	}
	return nil
}

// sameTunnel says which device has the network already.
func (k *kernel) sameTunnel() error {
	links, err := k.LinkList()
	if err != nil && len(links) == 0 {
		return err
	}
	for _, l := range links {
		if v, ok := l.(*netlink.Vxlan); ok && v.VxlanId == k.VNI && v.Port == k.Port {
			return fmt.Errorf("%s of this machine has the VXLAN network %d at port %d: give this cluster another one", v.Name, k.VNI, k.Port)
		}
	}
	return fmt.Errorf("another device of this machine has the VXLAN network %d at port %d: give this cluster another one", k.VNI, k.Port)
}

// setLocal changes the address that tunnelled packets are sent from. The kernel refuses a message
// with all that the device is made of.
func (k *kernel) setLocal(u Underlay, local netip.Addr) error {
	req := nl.NewNetlinkRequest(unix.RTM_NEWLINK, unix.NLM_F_ACK)
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(k.index[u])
	req.AddData(msg)
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(nl.IFLA_INFO_KIND, nl.NonZeroTerminated("vxlan"))
	data := info.AddRtAttr(nl.IFLA_INFO_DATA, nil)
	data.AddRtAttr(nl.IFLA_VXLAN_ID, nl.Uint32Attr(uint32(k.VNI)))
	switch {
	case u == IPv4 && local.IsValid():
		data.AddRtAttr(nl.IFLA_VXLAN_LOCAL, local.AsSlice())
	case u == IPv4:
		data.AddRtAttr(nl.IFLA_VXLAN_LOCAL, make([]byte, net.IPv4len))
	case local.IsValid():
		data.AddRtAttr(nl.IFLA_VXLAN_LOCAL6, local.AsSlice())
	default:
		data.AddRtAttr(nl.IFLA_VXLAN_LOCAL6, net.IPv6unspecified)
	}
	req.AddData(info)
	req.Sockets = k.sockets
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	return err
}

func (k *kernel) removeDevice(u Underlay) error {
	err := k.on(u, func(index int) error {
		return k.LinkDel(&netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: index}})
	})
	if err == nil || errors.Is(err, unix.ENODEV) {
		delete(k.index, u)
		return nil
	}
	return err
}

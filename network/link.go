package network

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// podIf is the name of the pod's interface.
const podIf = "eth0"

// vethPrefix is how all such names begin.
const vethPrefix = "cor"

// vethName is the host's end of a pod's link. 12 hex digits of a hash, because an
// interface name has 15 bytes and pod ids may share a beginning.
func vethName(podID string) string {
	sum := sha256.Sum256([]byte(podID))
	return vethPrefix + hex.EncodeToString(sum[:6])
}

// macOf derives a local MAC address from an IP address, so that a neighbour's cache
// stays right when the address gets a new owner.
func macOf(a netip.Addr) net.HardwareAddr {
	if a.Is4() {
		b := a.As4()
		return net.HardwareAddr{0x0a, 0x58, b[0], b[1], b[2], b[3]}
	}
	sum := sha256.Sum256(a.AsSlice())
	return net.HardwareAddr{0x0a, 0x58, sum[0], sum[1], sum[2], sum[3]}
}

// hostMAC is the address of the host's end of every link. Pods have a permanent neighbour entry for
// their gateway with it. No pod has it: it is macOf(0.0.0.1).
var hostMAC = net.HardwareAddr{0x0a, 0x58, 0, 0, 0, 1}

// podIndex is the index of the pod's end. We choose it, so that it need not be looked up. The first
// ones may be devices that the kernel makes in each namespace
// (net.core.fb_tunnels_only_for_init_net). It must differ from that of the host's end: otherwise
// the kernel delays link events up to a second.
const podIndex = 1000

// Indexes of host ends: above those that the kernel counts up to.
const firstIndex, lastIndex = 1 << 20, 1<<30 - 1

// linkGroup is the group (ip-link(8)) of all links of a node's pods.
func linkGroup(name string) uint32 {
	sum := sha256.Sum256([]byte(name))
	return binary.BigEndian.Uint32(sum[:])>>2 | 1<<30 // not one that people use, and no negative number
}

// link is a pod's link: a veth pair, with the pod's routes and neighbours on both sides.
type link struct {
	name  string // of the host's end
	index int    // of the host's end
	group uint32
	mtu   int
	mac   net.HardwareAddr // of the pod's end
	ips   []netip.Addr
}

// create makes the pair: the host's end up, and the pod's end in the pod's namespace. The index of
// the host's end is chosen here, so that it need not be looked up.
//
// The host's end resolves no neighbours (IFF_NOARP): those that it has are permanent.
func (l *link) create(ctx context.Context, h *hostLinks, netns int) error {
	var err error
	for range 3 { // in case the index is taken
		l.index = firstIndex + rand.IntN(lastIndex-firstIndex)
		if err = h.execute(l.request(netns)); !errors.Is(err, unix.EEXIST) && !errors.Is(err, unix.EBUSY) {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("create link %s: %w", l.name, err)
	}
	if err := faultSetupCreated.At(ctx); err != nil {
		return err
	}
	// The host's end needs no IPv6 address, and each costs the kernel work during the pod's first
	// second. The create message cannot say so.
	req := nl.NewNetlinkRequest(unix.RTM_NEWLINK, unix.NLM_F_ACK)
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(l.index)
	req.AddData(msg)
	families := nl.NewRtAttr(unix.IFLA_AF_SPEC, nil)
	families.AddRtAttr(unix.AF_INET6, nil).AddRtAttr(unix.IFLA_INET6_ADDR_GEN_MODE, nl.Uint8Attr(nl.IN6_ADDR_GEN_MODE_NONE))
	req.AddData(families)
	if err := h.execute(req); err != nil && !errors.Is(err, unix.EAFNOSUPPORT) { // no IPv6 on this link, for example because of its MTU
		return fmt.Errorf("switch off link-local address of %s: %w", l.name, err)
	}
	return nil
}

func (l *link) request(netns int) *nl.NetlinkRequest {
	req := nl.NewNetlinkRequest(unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL|unix.NLM_F_ACK)
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(l.index)
	msg.Flags, msg.Change = unix.IFF_UP|unix.IFF_NOARP, unix.IFF_UP|unix.IFF_NOARP
	req.AddData(msg)
	req.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(l.name)))
	req.AddData(nl.NewRtAttr(unix.IFLA_MTU, nl.Uint32Attr(uint32(l.mtu))))
	req.AddData(nl.NewRtAttr(unix.IFLA_ADDRESS, hostMAC))
	req.AddData(nl.NewRtAttr(unix.IFLA_GROUP, nl.Uint32Attr(l.group)))
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(nl.IFLA_INFO_KIND, nl.NonZeroTerminated("veth"))
	peer := info.AddRtAttr(nl.IFLA_INFO_DATA, nil).AddRtAttr(nl.VETH_INFO_PEER, nil)
	nl.NewIfInfomsgChild(peer, unix.AF_UNSPEC).Index = podIndex
	peer.AddRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(podIf))
	peer.AddRtAttr(unix.IFLA_MTU, nl.Uint32Attr(uint32(l.mtu)))
	peer.AddRtAttr(unix.IFLA_ADDRESS, l.mac)
	peer.AddRtAttr(unix.IFLA_NET_NS_FD, nl.Uint32Attr(uint32(netns)))
	req.AddData(info)
	return req
}

// routeProtocol marks our routes (rtm_protocol, rtnetlink(7)).
const routeProtocol = 85

// connect gives the host a route and a permanent neighbour for each address of the pod. The
// gateways are the host's own addresses towards pods.
func (l *link) connect(h *netlink.Handle, gateways []netip.Addr) error {
	for _, ip := range l.ips {
		route := &netlink.Route{LinkIndex: l.index, Dst: ipNet(ip, ip.BitLen()), Scope: netlink.SCOPE_LINK, Protocol: routeProtocol}
		if gw := gatewayOf(ip, gateways); gw.IsValid() {
			route.Src = gw.AsSlice()
		}
		if err := h.RouteReplace(route); err != nil {
			return fmt.Errorf("route to %s: %w", ip, err)
		}
		if err := h.NeighSet(neighbour(l.index, ip, l.mac)); err != nil {
			return fmt.Errorf("neighbour %s: %w", ip, err)
		}
	}
	return nil
}

// awaitUp returns when packets to the pod pass. When the pod's end comes up, the kernel leaves the
// host's end to a worker, and drops what is sent there before that has run: linkwatch_do_dev in
// net/core/link_watch.c. Since Linux 6.8 the question does the worker's part.
func (l *link) awaitUp(ctx context.Context, h *netlink.Handle) error {
	err := await(ctx, func() (bool, error) {
		host, err := h.LinkByIndex(l.index)
		if err != nil {
			return false, err
		}
		return host.Attrs().OperState == netlink.OperUp, nil
	})
	if err != nil {
		return fmt.Errorf("wait for link %s to come up: %w", l.name, err)
	}
	return nil
}

// await asks every millisecond, as the kernel tells no one, until the answer is yes.
func await(ctx context.Context, ask func() (bool, error)) error {
	for {
		if yes, err := ask(); err != nil || yes {
			return err
		}
		select {
		case <-time.After(time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// gatewayOf returns the gateway of an address's family, the zero Addr if there is none.
func gatewayOf(ip netip.Addr, gateways []netip.Addr) netip.Addr {
	for _, gw := range gateways {
		if gw.BitLen() == ip.BitLen() {
			return gw
		}
	}
	return netip.Addr{}
}

func neighbour(index int, ip netip.Addr, mac net.HardwareAddr) *netlink.Neigh {
	family := netlink.FAMILY_V4
	if ip.Is6() {
		family = netlink.FAMILY_V6
	}
	return &netlink.Neigh{LinkIndex: index, Family: family, State: netlink.NUD_PERMANENT, IP: ip.AsSlice(), HardwareAddr: mac}
}

// hostLinks changes links of the host's namespace over one socket.
type hostLinks struct {
	*netlink.Handle
	sockets map[int]*nl.SocketHandle
}

// LinkList lists all links. It asks again when some come or go meanwhile, which is usual on a node.
func (h *hostLinks) LinkList() ([]netlink.Link, error) {
	const tries = 8
	for try := 1; ; try++ {
		all, err := h.Handle.LinkList()
		if try == tries || !errors.Is(err, netlink.ErrDumpInterrupted) {
			return all, err
		}
	}
}

func newHostLinks() (*hostLinks, error) {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open netlink: %w", err)
	}
	s, err := nl.GetNetlinkSocketAt(netns.None(), netns.None(), unix.NETLINK_ROUTE)
	if err != nil {
		h.Close()
		return nil, fmt.Errorf("open netlink: %w", err)
	}
	return &hostLinks{Handle: h, sockets: map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: {Socket: s}}}, nil
}

func (h *hostLinks) close() {
	h.Close()
	for _, s := range h.sockets {
		s.Close()
	}
}

func (h *hostLinks) execute(req *nl.NetlinkRequest) error {
	req.Sockets = h.sockets
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	return err
}

// deleteLink deletes a link of the host; one that is gone is fine. It has a socket of
// its own, because the kernel answers late.
func deleteLink(name string) error {
	req := nl.NewNetlinkRequest(unix.RTM_DELLINK, unix.NLM_F_ACK)
	req.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	req.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(name)))
	if _, err := req.Execute(unix.NETLINK_ROUTE, 0); err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("delete link %s: %w", name, err)
	}
	return nil
}

// openNetns opens a pinned network namespace, and refuses what is none.
func openNetns(path string) (*os.File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("network namespace: %w", err)
	}
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &st); err != nil || st.Type != unix.NSFS_MAGIC {
		f.Close()
		return nil, fmt.Errorf("network namespace: %s is not a namespace", path)
	}
	return f, nil
}

// openPod returns a handle for the network of a pod's namespace.
func openPod(ns *os.File) (*netlink.Handle, error) {
	h, err := netlink.NewHandleAt(netns.NsHandle(ns.Fd()), unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open netlink in the pod: %w", err)
	}
	return h, nil
}

// podEnd names the pod's end for netlink.
var podEnd = &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: podIf, Index: podIndex}}

// configure brings up the pod's end and gives it addresses and default routes. It returns the
// addresses that it has given: a pod may have IPv6 off (sysctl net.ipv6.conf.all.disable_ipv6).
//
// The addresses come first: when a link comes up, the kernel works under its one lock on network
// configuration, and the next message would wait for that.
func configure(h *netlink.Handle, ips, gateways []netip.Addr) (given []netip.Addr, err error) {
	for _, ip := range ips {
		err := h.AddrAdd(podEnd, podAddr(ip))
		if ip.Is6() && len(given) > 0 && errors.Is(err, unix.EACCES) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("give the pod address %s: %w", ip, err)
		}
		given = append(given, ip)
	}
	if err := h.LinkSetUp(podEnd); err != nil {
		return nil, fmt.Errorf("bring up %s in the pod: %w", podIf, err)
	}
	for _, ip := range given {
		gw := gatewayOf(ip, gateways)
		if err := h.NeighSet(neighbour(podIndex, gw, hostMAC)); err != nil {
			return nil, fmt.Errorf("add neighbour entry for gateway %s: %w", gw, err)
		}
		if err := h.RouteAdd(&netlink.Route{LinkIndex: podIndex, Gw: gw.AsSlice(), Flags: int(netlink.FLAG_ONLINK)}); err != nil {
			return nil, fmt.Errorf("give the pod a default route by %s: %w", gw, err)
		}
	}
	return given, nil
}

func podAddr(ip netip.Addr) *netlink.Addr {
	addr := &netlink.Addr{IPNet: ipNet(ip, ip.BitLen())}
	if ip.Is6() {
		// The addresses are handed out by us: no one else has them, and a
		// program that starts at once could not bind a tentative one.
		addr.Flags = unix.IFA_F_NODAD
	}
	return addr
}

// awaitAddresses returns when the pod takes packets to its IPv6 addresses. The kernel leaves their
// routes to a worker, and drops what comes before that has run: addrconf_dad_work in
// net/ipv6/addrconf.c. We add no such route ourselves: it would outlive the address, and programs
// take that away (gVisor, which has its own network) for the kernel not to answer.
//
// An address may be gone: when a link comes up, the kernel drops an IPv6 address for which it has
// no memory at hand (addrconf_permanent_addr). For one that is given again it waits.
func awaitAddresses(ctx context.Context, h *netlink.Handle, ips []netip.Addr) error {
	for _, ip := range ips {
		if !ip.Is6() {
			continue
		}
		err := await(ctx, func() (bool, error) {
			routes, err := h.RouteGet(ip.AsSlice())
			if err != nil || len(routes) > 0 && routes[0].Type == unix.RTN_LOCAL {
				return err == nil, err
			}
			if err := h.AddrAdd(podEnd, podAddr(ip)); err != nil && !errors.Is(err, unix.EEXIST) {
				return false, fmt.Errorf("give the address again: %w", err)
			}
			return false, nil
		})
		if err != nil {
			return fmt.Errorf("wait for the pod to take packets to %s: %w", ip, err)
		}
	}
	return nil
}

func ipNet(a netip.Addr, bits int) *net.IPNet {
	return &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(bits, a.BitLen())}
}

package network

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

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

// veth is a pod's link.
type veth struct {
	name   string // on the host
	master int    // index of the bridge
	group  uint32 // see linkGroup
	mtu    int
	mac    net.HardwareAddr // of the pod's end
	netns  int              // descriptor of the pod's namespace
}

// create makes the pair in one message: the host's end up and on the bridge, the
// pod's end in the pod's namespace. netlink.LinkAdd takes one message each for
// that, and each waits for the kernel's one lock on network configuration.
func (v veth) create(ctx context.Context, h *hostLinks) error {
	req := nl.NewNetlinkRequest(unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL|unix.NLM_F_ACK)
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Flags, msg.Change = unix.IFF_UP, unix.IFF_UP
	req.AddData(msg)
	req.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(v.name)))
	req.AddData(nl.NewRtAttr(unix.IFLA_MTU, nl.Uint32Attr(uint32(v.mtu))))
	req.AddData(nl.NewRtAttr(unix.IFLA_MASTER, nl.Uint32Attr(uint32(v.master))))

	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(nl.IFLA_INFO_KIND, nl.NonZeroTerminated("veth"))
	data := info.AddRtAttr(nl.IFLA_INFO_DATA, nil)
	peer := data.AddRtAttr(nl.VETH_INFO_PEER, nil)
	nl.NewIfInfomsgChild(peer, unix.AF_UNSPEC)
	peer.AddRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(podIf))
	peer.AddRtAttr(unix.IFLA_MTU, nl.Uint32Attr(uint32(v.mtu)))
	peer.AddRtAttr(unix.IFLA_ADDRESS, v.mac)
	peer.AddRtAttr(unix.IFLA_NET_NS_FD, nl.Uint32Attr(uint32(v.netns)))
	req.AddData(info)

	if err := h.execute(req); err != nil {
		return fmt.Errorf("create link %s: %w", v.name, err)
	}
	if err := faultSetupCreated.At(ctx); err != nil {
		return err
	}
	return v.makePort(h)
}

// makePort says what cannot be said in create's message, before the pod's end is up.
//
// Hairpin mode lets the bridge send a frame back by the port it came from: that is the
// way from a pod to itself by a host port or a service, when br_netfilter
// translates the address on the bridge.
//
// A port of a bridge needs no address, so it gets no IPv6 one of its own: the kernel would look for it
// and tell of it on the link, in the pod's first second.
func (v veth) makePort(h *hostLinks) error {
	err := v.setPort(h, true)
	if errors.Is(err, unix.EAFNOSUPPORT) { // no IPv6 on such a link, be it for its MTU
		err = v.setPort(h, false)
	}
	if err != nil {
		return fmt.Errorf("set up bridge port %s: %w", v.name, err)
	}
	return nil
}

// setPort is makePort, with what needs IPv6 on the link or without.
func (v veth) setPort(h *hostLinks, ipv6 bool) error {
	req := nl.NewNetlinkRequest(unix.RTM_NEWLINK, unix.NLM_F_ACK)
	req.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	req.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(v.name)))
	req.AddData(nl.NewRtAttr(unix.IFLA_GROUP, nl.Uint32Attr(v.group)))
	if ipv6 {
		families := nl.NewRtAttr(unix.IFLA_AF_SPEC, nil)
		families.AddRtAttr(unix.AF_INET6, nil).AddRtAttr(unix.IFLA_INET6_ADDR_GEN_MODE, nl.Uint8Attr(nl.IN6_ADDR_GEN_MODE_NONE))
		req.AddData(families)
	}
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(nl.IFLA_INFO_SLAVE_KIND, nl.NonZeroTerminated("bridge"))
	data := info.AddRtAttr(nl.IFLA_INFO_SLAVE_DATA, nil)
	data.AddRtAttr(nl.IFLA_BRPORT_MODE, nl.Uint8Attr(1))
	req.AddData(info)
	return h.execute(req)
}

// hostLinks changes links of the host's namespace over one socket.
type hostLinks struct {
	*netlink.Handle
	sockets map[int]*nl.SocketHandle
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

// podAddress is one address of a pod.
type podAddress struct {
	ip      netip.Addr
	bits    int
	gateway netip.Addr
}

// configure brings up the pod's end and gives it addresses and default routes. It
// returns the addresses that it has given: a pod may have IPv6 switched off
// (sysctl net.ipv6.conf.all.disable_ipv6), and then goes without. sysctls are what the pod has chosen.
func configure(ns *os.File, addresses []podAddress, sysctls map[string]string) (given []netip.Addr, err error) {
	h, err := netlink.NewHandleAt(netns.NsHandle(ns.Fd()), unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open netlink in the pod: %w", err)
	}
	defer h.Close()
	link, err := h.LinkByName(podIf)
	if err != nil {
		return nil, fmt.Errorf("find %s in the pod: %w", podIf, err)
	}
	if err := calm(ns, h, link, addresses, sysctls); err != nil {
		return nil, err
	}
	if err := h.LinkSetUp(link); err != nil {
		return nil, fmt.Errorf("bring up %s in the pod: %w", podIf, err)
	}
	for _, a := range addresses {
		addr := &netlink.Addr{IPNet: ipNet(a.ip, a.bits)}
		if a.ip.Is6() {
			// The addresses are handed out by us: nobody else has them, and a
			// program that starts at once could not bind a tentative one.
			addr.Flags = unix.IFA_F_NODAD
		}
		err := h.AddrAdd(link, addr)
		if a.ip.Is6() && len(given) > 0 && errors.Is(err, unix.EACCES) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("give the pod address %s: %w", a.ip, err)
		}
		route := &netlink.Route{LinkIndex: link.Attrs().Index, Gw: a.gateway.AsSlice()}
		if err := h.RouteAdd(route); err != nil {
			return nil, fmt.Errorf("give the pod a default route by %s: %w", a.gateway, err)
		}
		given = append(given, a.ip)
	}
	return given, nil
}

func ipNet(a netip.Addr, bits int) *net.IPNet {
	return &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(bits, a.BitLen())}
}

package nodes

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// connect makes the bridge.
func (w Network) connect() error {
	mac := make(net.HardwareAddr, 6)
	_, _ = rand.Read(mac) // it never fails
	mac[0] = mac[0]&^1 | 2
	attrs := netlink.NewLinkAttrs()
	// With an address of its own, it does not take that of a link that comes.
	attrs.Name, attrs.HardwareAddr = w.Bridge(), mac
	if err := ignore(netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}), unix.EEXIST); err != nil {
		return fmt.Errorf("make bridge %s: %w", w.Bridge(), err)
	}
	l, err := netlink.LinkByName(w.Bridge())
	if err != nil {
		return fmt.Errorf("find bridge %s: %w", w.Bridge(), err)
	}
	if l.Type() != "bridge" {
		return fmt.Errorf("link %s is no bridge, but of type %s: remove it", w.Bridge(), l.Type())
	}
	return w.furnishLink(&netlink.Handle{}, l, 1)
}

// furnishLink sets a link up and gives it the addresses of a node. In the other order, the kernel
// may drop an IPv6 address as the link comes up (addrconf_permanent_addr in net/ipv6/addrconf.c).
func (w Network) furnishLink(h *netlink.Handle, l netlink.Link, n int) error {
	if err := h.LinkSetUp(l); err != nil {
		return fmt.Errorf("set %s up: %w", l.Attrs().Name, err)
	}
	for i, a := range w.Address(n) {
		// Without a look for duplicates, IPv6 addresses can be used at once.
		addr := &netlink.Addr{IPNet: ipNet(a, w.Prefixes[i].Bits()), Flags: unix.IFA_F_NODAD}
		if err := ignore(h.AddrAdd(l, addr), unix.EEXIST); err != nil {
			return fmt.Errorf("give %s the address %s: %w", l.Attrs().Name, a, err)
		}
	}
	return nil
}

func ipNet(a netip.Addr, bits int) *net.IPNet {
	return &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(bits, a.BitLen())}
}

// attach makes the link of a node.
func (w Network) attach(n int) error {
	space, err := os.Open(w.file(n, "net"))
	if err != nil {
		return err
	}
	defer func() { _ = space.Close() }()
	inside, err := netlink.NewHandleAt(netns.NsHandle(space.Fd()))
	if err != nil {
		return err
	}
	defer inside.Close()
	near, err := w.pair(n, inside, int(space.Fd()))
	if err != nil {
		return err
	}
	bridge, err := netlink.LinkByName(w.Bridge())
	if err == nil && near.Attrs().MasterIndex != bridge.Attrs().Index {
		err = netlink.LinkSetMaster(near, bridge)
	}
	if err == nil {
		// With net.bridge.bridge-nf-call-iptables, the bridge itself, not the machine's routes, passes
		// on what a Service's node port sends back to the node that it came from.
		err = netlink.LinkSetHairpin(near, true)
	}
	if err == nil {
		err = netlink.LinkSetUp(near)
	}
	if err != nil {
		return fmt.Errorf("connect %s: %w", w.Link(n), err)
	}
	far, err := inside.LinkByName(uplink)
	if err != nil {
		return fmt.Errorf("find %s: %w", uplink, err)
	}
	if err := w.furnishLink(inside, far, n); err != nil {
		return err
	}
	for _, gateway := range w.Address(1) {
		zero := netip.IPv4Unspecified()
		if gateway.Is6() {
			zero = netip.IPv6Unspecified()
		}
		route := &netlink.Route{LinkIndex: far.Attrs().Index, Dst: ipNet(zero, 0), Gw: gateway.AsSlice()}
		if err := inside.RouteReplace(route); err != nil {
			return fmt.Errorf("route by %s: %w", gateway, err)
		}
	}
	return nil
}

// pair makes the pair of links between a node and this machine, and returns the end that is here.
func (w Network) pair(n int, inside *netlink.Handle, space int) (netlink.Link, error) {
	near, err := netlink.LinkByName(w.Link(n))
	if err == nil {
		if _, err := inside.LinkByName(uplink); err == nil {
			return near, nil
		}
		// The other end is in a namespace that processes of an earlier node hold, or that the kernel is
		// just removing, and the pair with it.
		if err := ignore(netlink.LinkDel(near), unix.ENODEV); err != nil {
			return nil, fmt.Errorf("remove %s: %w", w.Link(n), err)
		}
	} else if notFound := (netlink.LinkNotFoundError{}); !errors.As(err, &notFound) {
		return nil, err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = w.Link(n)
	veth := &netlink.Veth{LinkAttrs: attrs, PeerName: uplink, PeerNamespace: netlink.NsFd(space)}
	if err := netlink.LinkAdd(veth); err != nil {
		return nil, fmt.Errorf("make %s: %w", w.Link(n), err)
	}
	return netlink.LinkByName(w.Link(n))
}

package network

import (
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Regression: one of some ten thousand pods that started on a busy machine had no IPv6 address. The
// kernel had dropped it as the link came up, for want of memory. That cannot be arranged, so the
// address is taken away here.
func TestDroppedAddressIsGivenAgain(t *testing.T) {
	path, _ := newNetNS(t)
	ns, err := openNetns(path)
	must(t, err)
	defer ns.Close()
	h, err := netlink.NewHandleAt(netns.NsHandle(ns.Fd()), unix.NETLINK_ROUTE)
	must(t, err)
	defer h.Close()
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.Index = podIf, podIndex
	end := &netlink.Veth{LinkAttrs: attrs, PeerName: "peer"}
	must(t, h.LinkAdd(end))
	must(t, h.LinkSetUp(end))
	kept, dropped := netip.MustParseAddr("fd00::1"), netip.MustParseAddr("fd00::2")
	for _, ip := range []netip.Addr{kept, dropped} {
		must(t, h.AddrAdd(end, podAddr(ip)))
	}
	must(t, h.AddrDel(end, podAddr(dropped)))

	for _, ip := range []netip.Addr{kept, dropped} {
		must(t, receive(h, end, ip))
		all, err := h.AddrList(end, netlink.FAMILY_V6)
		must(t, err)
		count := 0
		for _, a := range all {
			if a.IP.Equal(ip.AsSlice()) {
				count++
			}
		}
		if count != 1 {
			t.Errorf("%s: given %d times", ip, count)
		}
		routes, err := h.RouteGet(ip.AsSlice())
		must(t, err)
		if len(routes) != 1 || routes[0].Type != unix.RTN_LOCAL {
			t.Errorf("%s: routes %v", ip, routes)
		}
	}
}

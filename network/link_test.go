package network

import (
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Regression: one of some ten thousand pods that started on a busy machine had no IPv6 address. The
// kernel had dropped it as the link came up, for want of memory. That cannot be arranged, so the
// address is never given here.
func TestDroppedAddressIsGivenAgain(t *testing.T) {
	path, _ := newNetNS(t)
	ns, err := openNetns(path)
	must(t, err)
	defer ns.Close()
	h, err := openPod(ns)
	must(t, err)
	defer h.Close()
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.Index = podIf, podIndex
	must(t, h.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "peer"}))
	kept, dropped, gw := netip.MustParseAddr("fd00::1"), netip.MustParseAddr("fd00::2"), netip.MustParseAddr("fd00::ffff")
	_, err = configure(h, []netip.Addr{kept}, []netip.Addr{gw})
	must(t, err)

	must(t, awaitAddresses(t.Context(), h, []netip.Addr{kept, dropped}))
	all, err := h.AddrList(podEnd, netlink.FAMILY_V6)
	must(t, err)
	for _, ip := range []netip.Addr{kept, dropped} {
		count := 0
		for _, a := range all {
			if a.IP.Equal(ip.AsSlice()) {
				count++
			}
		}
		routes, err := h.RouteGet(ip.AsSlice())
		must(t, err)
		if count != 1 || len(routes) != 1 || routes[0].Type != unix.RTN_LOCAL {
			t.Errorf("%s: given %d times, routes %v", ip, count, routes)
		}
	}

	// What the pod gives up, it answers for no more: nothing of ours outlives the address.
	must(t, h.AddrDel(podEnd, podAddr(kept)))
	routes, err := h.RouteGet(kept.AsSlice())
	must(t, err)
	if len(routes) != 1 || routes[0].Type == unix.RTN_LOCAL {
		t.Errorf("after its address is gone, the pod has routes %v", routes)
	}
}

package network

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
)

// Regression: of a default route with several hops, no link was known.
func TestUplinksOfOneRoute(t *testing.T) {
	must(t, setSysctl("ipv4/ip_forward", "0"))
	m := started(t, testConfig(t))
	one, _ := outsideOf(t, "uplink1", 1, false)
	two, twoIP := outsideOf(t, "uplink2", 2, false)
	serve(t, two, "two", "tcp", 80)
	connect(t, m, "a")
	expect(t, "before there is a default route", one, "tcp", twoIP, 80, "two 198.51.1.2")
	var hops4, hops6 []*netlink.NexthopInfo
	for i, name := range []string{"uplink1", "uplink2"} {
		link, err := netlink.LinkByName(name)
		must(t, err)
		must(t, netlink.LinkSetMTU(link, 1400))
		third := byte(i + 1)
		hops4 = append(hops4, &netlink.NexthopInfo{LinkIndex: link.Attrs().Index, Gw: net.IP{198, 51, third, 2}})
		hops6 = append(hops6, &netlink.NexthopInfo{LinkIndex: link.Attrs().Index, Gw: net.IP{0: 0xfe, 1: 0x80, 15: third}})
	}
	must(t, netlink.RouteAdd(&netlink.Route{Dst: ipNet(netip.IPv4Unspecified(), 0), MultiPath: hops4}))
	must(t, netlink.RouteAdd(&netlink.Route{Dst: ipNet(netip.IPv6Unspecified(), 0), MultiPath: hops6}))
	// The message about the route is on its way.
	for end := time.Now().Add(patience); ; {
		if _, err := ask(t, one, "tcp", twoIP, 80, silence); err != nil {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the host forwards between its uplinks")
		}
	}
	must(t, m.fwRemove())
	connect(t, m, "b") // makes the table again
	expectNone(t, "after the rules were flushed", one, "tcp", twoIP, 80)
	h, err := newHostLinks()
	must(t, err)
	defer h.close()
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		links, err := defaultLinks(h, family)
		if err != nil || len(links) != 2 {
			t.Errorf("family %d: links with a default route %v, %v", family, links, err)
		}
	}
	if mtu := uplinkMTU(h); mtu != 1400 {
		t.Errorf("MTU of the uplinks %d", mtu)
	}
}

package network

import (
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/nftables"
	mdnetlink "github.com/mdlayher/netlink"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

var (
	peer4 = netip.MustParsePrefix("198.51.100.0/24")
	peer6 = netip.MustParsePrefix("2001:db8:100::/64")
)

// routesToPeers are routes to pods of another node, which is outside.
func routesToPeers(t *testing.T) []*netlink.Route {
	t.Helper()
	link, err := netlink.LinkByName("uplink")
	must(t, err)
	var all []*netlink.Route
	for i, p := range []netip.Prefix{peer4, peer6} {
		all = append(all, &netlink.Route{
			LinkIndex: link.Attrs().Index, Dst: ipNet(p.Addr(), p.Bits()), Gw: []netip.Addr{outside4, outside6}[i].AsSlice(),
			Protocol: peerRoutes, Priority: 6443,
		})
	}
	return all
}

// awaitPeers waits until the table has so many elements for other nodes. It counts them again
// whenever the kernel tells of a change.
func awaitPeers(t *testing.T, m *Manager, want int) {
	t.Helper()
	changes, err := mdnetlink.Dial(unix.NETLINK_NETFILTER, nil)
	must(t, err)
	defer changes.Close()
	must(t, changes.JoinGroup(unix.NFNLGRP_NFTABLES))
	must(t, changes.SetReadDeadline(time.Now().Add(time.Minute)))
	c, err := nftables.New()
	must(t, err)
	for {
		count := 0
		for _, name := range []string{"peers4", "peers6"} {
			elements, err := c.GetSetElements(&nftables.Set{Table: tableOf(m), Name: name})
			must(t, err)
			for _, e := range elements {
				if !e.IntervalEnd {
					count++
				}
			}
		}
		if count == want {
			return
		}
		if _, err := changes.Receive(); err != nil && !errors.Is(err, unix.ENOBUFS) {
			t.Fatalf("%d networks of other nodes, want %d: %v", count, want, err)
		}
	}
}

// Pods of other nodes reach pods as soon as there is a route to them that says so, and no longer.
func TestPeersReachPods(t *testing.T) {
	out := newOutside(t)
	m := started(t, testConfig(t))
	a := connect(t, m, "a")
	serve(t, a.NetNS, "a", "tcp", 80)
	pods := [][2]netip.Addr{{outside4, peer4.Addr().Next()}, {outside6, peer6.Addr().Next()}}
	must(t, within(t, out, func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		for i, via := range []netip.Addr{hostOut4, hostOut6} {
			pod := pods[i][1]
			// A route's source may be no address that is still looked for elsewhere.
			if err := netlink.AddrAdd(lo, &netlink.Addr{IPNet: ipNet(pod, pod.BitLen()), Flags: unix.IFA_F_NODAD}); err != nil {
				return err
			}
			s := m.builtin.subnets()[i]
			if err := netlink.RouteAdd(&netlink.Route{Dst: ipNet(s.Addr(), s.Bits()), Gw: via.AsSlice(), Src: pod.AsSlice()}); err != nil {
				return err
			}
		}
		return nil
	}))
	for i := range pods {
		expectNone(t, "before there is a route", out, "tcp", a.ips[i], 80)
	}
	routes := routesToPeers(t)
	for _, r := range routes {
		must(t, netlink.RouteAdd(r))
	}
	awaitPeers(t, m, 4)
	for i, pair := range pods {
		expect(t, "pod of another node", out, "tcp", a.ips[i], 80, "a "+pair[1].String())
	}
	must(t, within(t, out, func() error { // the node itself
		for i, via := range []netip.Addr{hostOut4, hostOut6} {
			s := m.builtin.subnets()[i]
			route := &netlink.Route{Dst: ipNet(s.Addr(), s.Bits()), Gw: via.AsSlice(), Src: pods[i][0].AsSlice()}
			if err := netlink.RouteReplace(route); err != nil {
				return err
			}
		}
		return nil
	}))
	for i, pair := range pods {
		expect(t, "another node", out, "tcp", a.ips[i], 80, "a "+pair[0].String())
	}
	// The table is made again.
	must(t, m.SetPodCIDR(t.Context(), []netip.Prefix{netip.MustParsePrefix("10.99.0.0/24"), m.builtin.subnets()[1]}))
	awaitPeers(t, m, 4)
	for _, r := range routes {
		must(t, netlink.RouteDel(r))
	}
	awaitPeers(t, m, 0)
	for i := range pods {
		expectNone(t, "after the routes", out, "tcp", a.ips[i], 80)
	}
}

// Nodes have more addresses than those that routes to their pods lead by.
func TestAddressesOfPeers(t *testing.T) {
	out := newOutside(t)
	m := started(t, testConfig(t))
	a := connect(t, m, "a")
	serve(t, a.NetNS, "a", "tcp", 80)
	must(t, within(t, out, func() error {
		for i, via := range []netip.Addr{hostOut4, hostOut6} {
			s := m.builtin.subnets()[i]
			if err := netlink.RouteAdd(&netlink.Route{Dst: ipNet(s.Addr(), s.Bits()), Gw: via.AsSlice()}); err != nil {
				return err
			}
		}
		return nil
	}))
	var routes []*netlink.Route
	for _, ip := range []netip.Addr{outside4, outside6} {
		routes = append(routes, &netlink.Route{
			Dst: ipNet(ip, ip.BitLen()), Type: unix.RTN_THROW, Table: 86086, Protocol: peerRoutes, Priority: 6443,
		})
	}
	for _, ip := range a.ips {
		expectNone(t, "before", out, "tcp", ip, 80)
	}
	for _, r := range routes {
		must(t, netlink.RouteAdd(r))
	}
	awaitPeers(t, m, 2)
	for i, ip := range a.ips {
		expect(t, "another node", out, "tcp", ip, 80, "a "+[]netip.Addr{outside4, outside6}[i].String())
	}
	for _, r := range routes {
		must(t, netlink.RouteDel(r))
	}
	awaitPeers(t, m, 0)
}

func TestPeerRangesDoNotOverlap(t *testing.T) {
	newOutside(t)
	link, err := netlink.LinkByName("uplink")
	must(t, err)
	for _, text := range []string{"198.51.100.0/24", "198.51.100.64/26", "198.51.100.0/25", "198.51.99.0/24"} {
		p := netip.MustParsePrefix(text)
		must(t, netlink.RouteAdd(&netlink.Route{
			LinkIndex: link.Attrs().Index, Dst: ipNet(p.Addr(), p.Bits()), Gw: outside4.AsSlice(), Protocol: peerRoutes,
		}))
	}
	h, err := newHostLinks()
	must(t, err)
	defer h.close()
	got, err := peerRanges(h)
	must(t, err)
	want := []netip.Prefix{
		netip.MustParsePrefix("198.51.99.0/24"), netip.MustParsePrefix("198.51.100.0/24"), netip.PrefixFrom(outside4, 32),
	}
	if !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

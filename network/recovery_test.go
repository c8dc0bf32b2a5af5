package network

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func TestSetupMendsWhatACrashLeft(t *testing.T) {
	steps := []string{"recorded", "linked", "connected without its stage", "removing"}
	for i, name := range steps {
		t.Run(name, func(t *testing.T) {
			c := testConfig(t)
			m := started(t, c)
			path, _ := newNetNS(t)
			p := Pod{ID: "a", NetNS: path, Ports: []PortMapping{{Protocol: "tcp", HostPort: 80, ContainerPort: 80}}}
			ports, err := hostPorts(p.Ports)
			must(t, err)
			h, err := m.builtin.ensureHost()
			must(t, err)
			l, err := m.builtin.reserve(h, p, ports)
			must(t, err)
			ns, err := openNetns(path)
			must(t, err)
			defer ns.Close()
			switch i {
			case 0:
				must(t, m.builtin.records.write("a", l))
			case 1:
				must(t, m.builtin.records.write("a", l))
				must(t, m.builtin.linkOf(h, l, 0).create(t.Context(), h.links, int(ns.Fd())))
			case 2:
				_, err := m.builtin.connect(t.Context(), h, ns, p, l)
				must(t, err)
				must(t, m.builtin.records.write("a", l))
			case 3:
				_, err := m.builtin.connect(t.Context(), h, ns, p, l)
				must(t, err)
				l.Stage = removing
				must(t, m.builtin.records.write("a", l))
			}
			again := started(t, c)
			r, err := again.Setup(t.Context(), p)
			must(t, err)
			serve(t, path, "a", "tcp", 80)
			expect(t, "after recovery", "", "tcp", netip.MustParseAddr("127.0.0.1"), 80, "a "+again.builtin.pools[0].gateway().String())
			if l := again.Leases(); len(l) != 1 || l[0].Removing || l[0].IPs[0] != r.IPs[0] {
				t.Errorf("leases %v", l)
			}
		})
	}
}

// Regression: if a failed Setup could not take down what it had made, the pod's addresses stayed
// taken until coracled was started again: Teardown takes such a pod for done.
func TestFailedUndoIsRepeated(t *testing.T) {
	m := started(t, testConfig(t))
	ns, end := newNetNS(t)
	defer end()
	lo, err := netlink.LinkByName("lo")
	must(t, err)
	// The loopback link cannot be deleted. While it has the name of the pod's link, too, that can be
	// neither made nor deleted.
	must(t, netlink.LinkAddAltName(lo, vethName("a")))
	_, err = m.Setup(t.Context(), Pod{ID: "a", NetNS: ns})
	undone := netlink.LinkDelAltName(lo, vethName("a"))
	if err == nil || !errors.Is(err, unix.EOPNOTSUPP) {
		t.Errorf("set up although there is a link of that name: %v, want that it cannot be deleted", err)
	}
	must(t, undone)
	must(t, m.Teardown(t.Context(), Pod{ID: "a", NetNS: ns}))
	awaitLeases(t, m, 0)
}

func TestRecoverDropsTheUnclaimed(t *testing.T) {
	c := testConfig(t)
	m := started(t, c)
	port := func(n uint16) PortMapping {
		return PortMapping{Protocol: "tcp", HostPort: n, ContainerPort: 80}
	}
	keep, drop := connect(t, m, "keep", port(8080)), connect(t, m, "drop", port(8081))
	serve(t, keep.NetNS, "keep", "tcp", 80)
	serve(t, drop.NetNS, "drop", "tcp", 80)
	stray := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: vethName("forgotten"), Group: linkGroup(m.builtin.name)}, PeerName: "stray-peer"}
	must(t, netlink.LinkAdd(stray))

	m = started(t, c)
	must(t, m.fwRemove()) // as someone who flushed all rules
	must(t, m.Recover(t.Context(), []string{"keep", "unheard-of"}))
	must(t, m.Flush(t.Context()))
	if l := m.Leases(); len(l) != 1 || l[0].PodID != "keep" {
		t.Errorf("leases %v", l)
	}
	if names := hostLinkNames(t); strings.Contains(names, vethName("drop")) || strings.Contains(names, stray.Name) ||
		!strings.Contains(names, vethName("keep")) {
		t.Errorf("links %s", names)
	}
	localhost, gw := netip.MustParseAddr("127.0.0.1"), m.builtin.pools[0].gateway().String()
	expect(t, "kept", "", "tcp", localhost, 8080, "keep "+gw)
	expectNone(t, "dropped", "", "tcp", localhost, 8081)
	must(t, m.Recover(t.Context(), []string{"keep"}))
}

func TestSetupMendsTheHost(t *testing.T) {
	m := started(t, testConfig(t))
	connect(t, m, "first")
	lo, err := netlink.LinkByName("lo")
	must(t, err)
	must(t, netlink.AddrDel(lo, gatewayAddr(m.builtin.pools[0].gateway())))
	connect(t, m, "after the host's address was removed")
	must(t, m.fwRemove())
	p := connect(t, m, "after the table was deleted", PortMapping{Protocol: "tcp", HostPort: 80, ContainerPort: 80})
	serve(t, p.NetNS, "p", "tcp", 80)
	expect(t, "repaired", "", "tcp", netip.MustParseAddr("127.0.0.1"), 80, "p "+m.builtin.pools[0].gateway().String())
	if n := len(m.Leases()); n != 3 {
		t.Errorf("%d leases", n)
	}
}

// Someone flushes the host's routes, or an earlier release has put the pods' links on its bridge.
func TestPodsAreConnectedAgain(t *testing.T) {
	c := testConfig(t)
	m := started(t, c)
	a, b := connect(t, m, "a"), connect(t, m, "b")
	serve(t, a.NetNS, "a", "tcp", 80)
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Protocol: routeProtocol}, netlink.RT_FILTER_PROTOCOL)
	must(t, err)
	for _, r := range routes {
		must(t, netlink.RouteDel(&r))
	}
	for _, ip := range a.ips {
		expectNone(t, "without routes", b.NetNS, "tcp", ip, 80)
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "other0"
	must(t, netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}))
	br, err := netlink.LinkByName(attrs.Name)
	must(t, err)
	defer func() { must(t, netlink.LinkDel(br)) }()
	link, err := netlink.LinkByName(vethName("b"))
	must(t, err)
	must(t, netlink.LinkSetMaster(link, br))
	m = started(t, c)
	must(t, m.Recover(t.Context(), []string{"a", "b"}))
	for i, ip := range a.ips {
		expect(t, "after Recover", b.NetNS, "tcp", ip, 80, "a "+b.ips[i].String())
	}
}

// A pod's link goes with its namespace, and its addresses are free then.
func TestLinkGoesWithItsNamespace(t *testing.T) {
	c := testConfig(t)
	c.Subnets = []netip.Prefix{netip.MustParsePrefix("10.1.2.0/30"), netip.MustParsePrefix("fd00::/64")} // one pod
	m := started(t, c)
	m.builtin.linger = time.Hour // so that the kernel's message is what counts
	path, end := newNetNS(t)
	_, err := m.Setup(t.Context(), Pod{ID: "a", NetNS: path})
	must(t, err)
	must(t, m.Teardown(t.Context(), Pod{ID: "a"}))
	late, _ := newNetNS(t)
	if _, err := m.Setup(t.Context(), Pod{ID: "late", NetNS: late}); !errors.Is(err, ErrExhausted) {
		t.Errorf("while the link is there: %v", err)
	}
	end()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	must(t, m.Flush(ctx))
	if _, err := m.Setup(t.Context(), Pod{ID: "late", NetNS: late}); err != nil {
		t.Errorf("when the link is gone: %v", err)
	}
	if names := hostLinkNames(t); strings.Contains(names, vethName("a")) {
		t.Errorf("links %s", names)
	}
}

// Regression: a teardown that was killed before it closed the host ports left them
// pointing at a dead pod until the next pod came.
func TestRecoverClosesPortsWithoutPods(t *testing.T) {
	c := testConfig(t)
	m := started(t, c)
	connect(t, m, "a", PortMapping{Protocol: "tcp", HostPort: 80, ContainerPort: 80})
	l, _ := m.builtin.lease("a")
	l.Stage = removing
	must(t, m.builtin.records.write("a", l))
	m = started(t, c)
	must(t, m.Recover(t.Context(), nil))
	must(t, m.Flush(t.Context()))
	nft, err := nftables.New()
	must(t, err)
	elements, err := nft.GetSetElements(&nftables.Set{Table: tableOf(m), Name: "ports4"})
	must(t, err)
	if len(elements) != 0 {
		t.Errorf("host ports %v", elements)
	}
}

// Regression: after the state directory was wiped, the host kept the address and the
// route of the range that was configured then.
func TestOtherSettingsAfterTheStateIsWiped(t *testing.T) {
	c := testConfig(t)
	m := started(t, c)
	p := connect(t, m, "a")
	must(t, m.Teardown(t.Context(), p.Pod))
	must(t, m.Flush(t.Context()))
	must(t, os.RemoveAll(c.StateDir))
	c.Subnets = []netip.Prefix{netip.MustParsePrefix("10.99.0.0/24")}
	m = started(t, c)
	must(t, m.Recover(t.Context(), nil))
	if got := fmt.Sprint(loopbackAddresses(t)); got != "[10.99.0.1/32]" {
		t.Errorf("addresses %s", got)
	}
	ranges, err := m.builtin.ranges(m.builtin.host.links)
	must(t, err)
	if !slices.Equal(ranges, c.Subnets) {
		t.Errorf("ranges %v", ranges)
	}
	connect(t, m, "b")
}

package network

import (
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// onOldBridge connects a pod as earlier releases did, and writes their record.
func onOldBridge(t *testing.T, c Config, id, host4, host6 string) testPod {
	t.Helper()
	ips := []netip.Addr{netip.MustParseAddr("10.85." + host4), netip.MustParseAddr("fd85:c0ac:1e00::" + host6)}
	gateways := []netip.Addr{netip.MustParseAddr("10.85.0.1"), netip.MustParseAddr("fd85:c0ac:1e00::1")}
	bits := []int{16, 64}
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	must(t, err)
	defer h.Close()
	br, err := h.LinkByName("coracle0")
	if err != nil {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.HardwareAddr = "coracle0", macOf(gateways[0])
		must(t, h.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}))
		br, err = h.LinkByName("coracle0")
		must(t, err)
		for i, gw := range gateways {
			must(t, h.AddrAdd(br, &netlink.Addr{IPNet: ipNet(gw, bits[i]), Flags: unix.IFA_F_NODAD}))
		}
		must(t, setSysctl("ipv6/conf/coracle0/accept_dad", "0"))
		must(t, h.LinkSetUp(br))
		must(t, setSysctl("ipv4/conf/coracle0/route_localnet", "1"))
	}
	path, _ := newNetNS(t)
	ns, err := openNetns(path)
	must(t, err)
	defer ns.Close()
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MasterIndex = vethName(id), br.Attrs().Index
	must(t, h.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: podIf, PeerNamespace: netlink.NsFd(ns.Fd()), PeerHardwareAddr: macOf(ips[0])}))
	port, err := h.LinkByName(attrs.Name)
	must(t, err)
	must(t, h.LinkSetGroup(port, int(linkGroup("coracle0"))))
	must(t, h.LinkSetHairpin(port, true))
	must(t, h.LinkSetUp(port))
	there, err := netlink.NewHandleAt(netns.NsHandle(ns.Fd()), unix.NETLINK_ROUTE)
	must(t, err)
	defer there.Close()
	eth, err := there.LinkByName(podIf)
	must(t, err)
	must(t, there.LinkSetUp(eth))
	for i, ip := range ips {
		must(t, there.AddrAdd(eth, &netlink.Addr{IPNet: ipNet(ip, bits[i]), Flags: unix.IFA_F_NODAD}))
		must(t, there.RouteAdd(&netlink.Route{LinkIndex: eth.Attrs().Index, Gw: gateways[i].AsSlice()}))
	}
	p := testPod{Pod{ID: id, NetNS: path}, ips}
	if id == "old" {
		p.Ports = []PortMapping{{Protocol: "tcp", HostPort: 8080, ContainerPort: 80}}
	}
	ports, err := hostPorts(p.Ports)
	must(t, err)
	rec, err := json.Marshal(map[string]any{
		"version": 1, "podID": id, "stage": "connected", "netns": path, "link": vethName(id), "ips": ips, "ports": ports,
	})
	must(t, err)
	dir := filepath.Join(c.StateDir, "bridge")
	must(t, os.MkdirAll(dir, 0o700))
	must(t, os.WriteFile(filepath.Join(dir, id+".json"), rec, 0o600))
	return p
}

// Pods of an earlier release stay on its bridge, and everything reaches everything; the bridge goes
// with the last of them.
func TestPodsOnTheOldBridge(t *testing.T) {
	c := testConfig(t)
	out := newOutside(t)
	old := onOldBridge(t, c, "old", "0.2", "2")
	older := onOldBridge(t, c, "older", "0.3", "3")
	m := started(t, c)
	must(t, m.Recover(t.Context(), []string{"old", "older"}))
	if got := m.Bridged(); !slices.Equal(got, []string{"old", "older"}) {
		t.Errorf("on the bridge: %v", got)
	}
	fresh := connect(t, m, "fresh")
	gw := m.builtin.pools[0].gateway()
	for _, p := range []testPod{old, fresh} {
		serve(t, p.NetNS, p.ID, "tcp", 80)
	}
	serve(t, out, "out", "tcp", 80)
	serve(t, "", "host", "tcp", 9000)
	check := func(when string, from, to testPod) {
		t.Helper()
		for i := range from.ips {
			expect(t, when, from.NetNS, "tcp", to.ips[i], 80, to.ID+" "+from.ips[i].String())
			expect(t, when+", from the host", "", "tcp", to.ips[i], 80, to.ID+" "+m.builtin.pools[i].gateway().String())
			expect(t, when+", to the outside", from.NetNS, "tcp", []netip.Addr{outside4, outside6}[i], 80,
				"out "+[]netip.Addr{hostOut4, hostOut6}[i].String())
			expect(t, when+", to the host", from.NetNS, "tcp", m.builtin.pools[i].gateway(), 9000, "host "+from.ips[i].String())
		}
	}
	check("old to new", old, fresh)
	check("new to old", fresh, old)
	expect(t, "host port of an old pod, from the host", "", "tcp", netip.MustParseAddr("127.0.0.1"), 8080, "old "+gw.String())
	expect(t, "host port of an old pod, from outside", out, "tcp", hostOut4, 8080, "old "+outside4.String())
	expect(t, "host port of an old pod, from a new one", fresh.NetNS, "tcp", gw, 8080, "old "+gw.String())

	must(t, m.Teardown(t.Context(), older.Pod))
	must(t, m.Flush(t.Context()))
	check("while another old pod is there", fresh, old)
	must(t, m.Teardown(t.Context(), old.Pod))
	must(t, m.Flush(t.Context()))
	if _, err := netlink.LinkByName("coracle0"); err == nil {
		t.Error("the bridge is left")
	}
	if got := m.Bridged(); len(got) != 0 {
		t.Errorf("on the bridge: %v", got)
	}
	again := connect(t, m, "again")
	serve(t, again.NetNS, "again", "tcp", 80)
	check("new to new", fresh, again)
}

// A bridge whose pods have gone meanwhile goes at the start.
func TestEmptyOldBridge(t *testing.T) {
	c := testConfig(t)
	onOldBridge(t, c, "old", "0.2", "2")
	m := started(t, c)
	must(t, m.Recover(t.Context(), nil))
	must(t, m.Flush(t.Context()))
	if _, err := netlink.LinkByName("coracle0"); err == nil {
		t.Error("the bridge is left")
	}
}

// A bridge that only has our name is someone else's.
func TestForeignBridge(t *testing.T) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "coracle0"
	must(t, netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}))
	m := started(t, testConfig(t))
	p := connect(t, m, "a")
	must(t, m.Teardown(t.Context(), p.Pod))
	must(t, m.Purge(t.Context()))
	br, err := netlink.LinkByName("coracle0")
	if err != nil {
		t.Fatal("the bridge is gone")
	}
	must(t, netlink.LinkDel(br))
}

package network

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"

	"github.com/coracle-project/coracle/internal/nspin"
)

func TestPoolGoesRound(t *testing.T) {
	p, err := newPool(netip.MustParsePrefix("10.1.2.0/29"))
	must(t, err)
	if p.gateway() != netip.MustParseAddr("10.1.2.1") {
		t.Errorf("gateway %s", p.gateway())
	}
	take := func(want string) netip.Addr {
		t.Helper()
		a, err := p.allocate()
		if err != nil || a.String() != want {
			t.Fatalf("got %s, %v; want %s", a, err, want)
		}
		return a
	}
	second := take("10.1.2.2")
	p.free(second)
	for i := 3; i <= 6; i++ {
		take(fmt.Sprint("10.1.2.", i)) // not .2 again while others are unused
	}
	take("10.1.2.2")
	if _, err := p.allocate(); !errors.Is(err, ErrExhausted) {
		t.Errorf("error %v", err)
	}
	p.free(netip.MustParseAddr("10.1.2.4"))
	take("10.1.2.4")
}

func TestBadConfig(t *testing.T) {
	with := func(change func(*Config)) Config {
		c := testConfig(t)
		change(&c)
		return c
	}
	subnets := func(s ...string) Config {
		return with(func(c *Config) {
			c.Subnets = []netip.Prefix{}
			for _, p := range s {
				c.Subnets = append(c.Subnets, netip.MustParsePrefix(p))
			}
		})
	}
	for name, c := range map[string]Config{
		"relative state":     with(func(c *Config) { c.StateDir = "state" }),
		"long name":          with(func(c *Config) { c.Name = "a-name-too-long0" }),
		"path as name":       with(func(c *Config) { c.Name = "../x" }),
		"small MTU":          with(func(c *Config) { c.MTU = 100 }),
		"no subnets":         subnets(),
		"two IPv4 subnets":   subnets("10.1.0.0/16", "10.2.0.0/16"),
		"no room":            subnets("10.1.0.0/31"),
		"one address":        subnets("fd00::1/128"),
		"multicast":          subnets("224.0.0.0/8"),
		"loopback":           subnets("127.0.0.0/8"),
		"invalid source":     with(func(c *Config) { c.AllowFrom = []netip.Prefix{{}} }),
		"invalid subnet":     with(func(c *Config) { c.Subnets = []netip.Prefix{{}} }),
		"IPv4 dressed as v6": subnets("::ffff:10.0.0.0/100"),
	} {
		if err := New(c).Start(t.Context()); !errors.Is(err, ErrConfig) {
			t.Errorf("%s: error %v", name, err)
		}
	}
}

func TestExhaustion(t *testing.T) {
	c := testConfig(t)
	c.Subnets = []netip.Prefix{netip.MustParsePrefix("10.1.2.0/29"), netip.MustParsePrefix("fd00::/64")}
	m := started(t, c)
	var pods []testPod
	for i := range 5 {
		pods = append(pods, connect(t, m, fmt.Sprint("p", i)))
	}
	path, _ := newNetNS(t)
	if _, err := m.Setup(t.Context(), Pod{ID: "late", NetNS: path}); !errors.Is(err, ErrExhausted) ||
		!strings.Contains(err.Error(), "10.1.2.0/29") {
		t.Errorf("error %v", err)
	}
	if n := len(m.Leases()); n != 5 {
		t.Errorf("%d leases", n)
	}
	must(t, m.Teardown(t.Context(), pods[3].Pod))
	must(t, m.Flush(t.Context()))
	if late := connect(t, m, "late"); late.ip4() != pods[3].ip4() {
		t.Errorf("got %s", late.ip4())
	}
}

func TestHostPortConflicts(t *testing.T) {
	m := started(t, testConfig(t))
	any80 := PortMapping{Protocol: "tcp", HostPort: 80, ContainerPort: 80}
	local80 := any80
	local80.HostIP = netip.MustParseAddr("127.0.0.1")
	out80 := any80
	out80.HostIP = hostOut4
	udp80 := any80
	udp80.Protocol = "udp"
	sctp80 := any80
	sctp80.Protocol = "sctp"

	local := connect(t, m, "local", local80)
	connect(t, m, "out", out80)
	connect(t, m, "udp", udp80)
	connect(t, m, "sctp", sctp80)
	path, _ := newNetNS(t)
	late := Pod{ID: "late", NetNS: path, Ports: []PortMapping{any80}}
	if _, err := m.Setup(t.Context(), late); !errors.Is(err, ErrPortInUse) || !strings.Contains(err.Error(), "80/tcp belongs to pod") {
		t.Errorf("any address: error %v", err)
	}
	late.Ports = []PortMapping{sctp80}
	if _, err := m.Setup(t.Context(), late); !errors.Is(err, ErrPortInUse) || !strings.Contains(err.Error(), "80/sctp belongs to pod") {
		t.Errorf("same port of SCTP: error %v", err)
	}
	late.Ports = []PortMapping{{Protocol: "tcp", HostPort: 81, ContainerPort: 81}, local80}
	if _, err := m.Setup(t.Context(), late); !errors.Is(err, ErrPortInUse) {
		t.Errorf("same address: error %v", err)
	}
	late.Ports = []PortMapping{{Protocol: "tcp", HostPort: 81, ContainerPort: 81, HostIP: netip.IPv6Loopback()}}
	if _, err := m.Setup(t.Context(), late); !errors.Is(err, ErrConfig) {
		t.Errorf("::1: error %v", err)
	}
	must(t, m.Teardown(t.Context(), local.Pod))
	late.Ports = []PortMapping{local80}
	if _, err := m.Setup(t.Context(), late); err != nil {
		t.Errorf("freed: %v", err)
	}
}

// tableOf is the nftables table of the built-in network.
func tableOf(m *Manager) *nftables.Table {
	return &nftables.Table{Name: m.builtin.name, Family: nftables.TableFamilyINet}
}

func (m *Manager) fwRemove() error { return m.builtin.fw.Remove() }

func TestPodWithoutIPv6(t *testing.T) {
	m := started(t, testConfig(t))
	dir := filepath.Join(t.TempDir(), "pod")
	set, err := pins.Create(t.Context(), dir, nspin.Spec{Net: true, Sysctls: map[string]string{
		"net.ipv6.conf.all.disable_ipv6": "1", "net.ipv6.conf.default.disable_ipv6": "1",
	}})
	must(t, err)
	defer func() { must(t, nspin.Remove(context.WithoutCancel(t.Context()), dir)) }()
	r, err := m.Setup(t.Context(), Pod{ID: "a", NetNS: set.Net, Ports: []PortMapping{{Protocol: "tcp", HostPort: 80, ContainerPort: 80}}})
	must(t, err)
	if len(r.IPs) != 1 || !r.IPs[0].Is4() || len(m.builtin.pools[1].used) != 0 {
		t.Errorf("addresses %v, pool %v", r.IPs, m.builtin.pools[1].used)
	}
	// It has fewer addresses than its host port was held for.
	must(t, m.Recover(t.Context(), []string{"a"}))
	if l, _ := m.builtin.lease("a"); len(l.Held) != 1 {
		t.Errorf("host ports held according to the record: %v", l.Held)
	}
}

// Forwarding IPv6 must not keep the host from learning its own routes.
func TestUplinkKeepsItsRouterAdvertisements(t *testing.T) {
	must(t, setSysctl("ipv6/conf/all/forwarding", "0"))
	uplink := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "uplink0"}}
	must(t, netlink.LinkAdd(uplink))
	defer func() { must(t, netlink.LinkDel(uplink)) }()
	connect(t, started(t, testConfig(t)), "a")
	if v, err := readSysctl("ipv6/conf/uplink0/accept_ra"); err != nil || v != "2" {
		t.Errorf("accept_ra of the uplink is %q, %v, want 2", v, err)
	}
}

func TestWarnsOfAFirewallThatDropsForwarded(t *testing.T) {
	nft, err := nftables.New()
	must(t, err)
	drop := nftables.ChainPolicyDrop
	table := nft.AddTable(&nftables.Table{Name: "docker", Family: nftables.TableFamilyIPv4})
	nft.AddChain(&nftables.Chain{
		Table: table, Name: "FORWARD", Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookForward,
		Priority: nftables.ChainPriorityFilter, Policy: &drop,
	})
	must(t, nft.Flush())
	defer func() {
		nft.DelTable(table)
		must(t, nft.Flush())
	}()
	var log strings.Builder
	c := testConfig(t)
	c.Log = slog.New(slog.NewTextHandler(&log, nil))
	connect(t, started(t, c), "a")
	if !strings.Contains(log.String(), "table=docker chain=FORWARD") {
		t.Errorf("log %s", log.String())
	}
}

func TestPurge(t *testing.T) {
	c := testConfig(t)
	m := started(t, c)
	must(t, m.Purge(t.Context())) // nothing there
	p := connect(t, m, "a")
	if err := m.Purge(t.Context()); err == nil || !strings.Contains(err.Error(), "still used by 1 pods") {
		t.Errorf("error %v", err)
	}
	must(t, m.Teardown(t.Context(), p.Pod))
	must(t, m.Purge(t.Context()))
	if hostLinkNames(t) != "lo" || len(loopbackAddresses(t)) > 0 {
		t.Errorf("links %s, addresses %v", hostLinkNames(t), loopbackAddresses(t))
	}
	nft, err := nftables.New()
	must(t, err)
	tables, err := nft.ListTables()
	must(t, err)
	if len(tables) != 0 {
		t.Errorf("tables %v", tables[0])
	}
	connect(t, m, "b") // all is made again
}

func TestTwoManagersOnOneHost(t *testing.T) {
	c, d := testConfig(t), testConfig(t)
	d.Name = "other0"
	d.Subnets = []netip.Prefix{netip.MustParsePrefix("10.99.0.0/24")}
	m, n := New(c), New(d)
	for _, x := range []*Manager{m, n} {
		must(t, x.Start(t.Context()))
		defer func() {
			must(t, x.Recover(t.Context(), nil))
			must(t, x.Purge(t.Context()))
			must(t, x.Close())
		}()
	}
	newOutside(t) // gives the host an address to masquerade with
	a, b := connect(t, m, "a"), connect(t, n, "b", PortMapping{Protocol: "tcp", HostPort: 80, ContainerPort: 80})
	serve(t, b.NetNS, "b", "tcp", 80)
	expect(t, "by host port of the other", a.NetNS, "tcp", m.builtin.pools[0].gateway(), 80, "b "+hostOut4.String())
}

func TestSetPodCIDR(t *testing.T) {
	c := testConfig(t)
	m := started(t, c)
	out := newOutside(t)
	serve(t, out, "out", "tcp", 80)
	old := connect(t, m, "old")
	must(t, m.SetPodCIDR(t.Context(), []netip.Prefix{netip.MustParsePrefix("10.77.1.0/24")}))
	// Pods that are there keep their routes, and the host its address towards them.
	serve(t, old.NetNS, "old", "tcp", 80)
	for i, ip := range old.ips {
		expect(t, "old pod, from the host", "", "tcp", ip, 80, "old "+[]string{"10.85.0.1", "fd85:c0ac:1e00::1"}[i])
	}
	m = started(t, c) // remembered
	fresh := connect(t, m, "fresh")
	if fresh.ip4() != netip.MustParseAddr("10.77.1.2") || len(fresh.ips) != 1 {
		t.Errorf("addresses %v", fresh.ips)
	}
	expect(t, "new pod to old pod", fresh.NetNS, "tcp", old.ip4(), 80, "old "+fresh.ip4().String())
	expect(t, "new pod to outside", fresh.NetNS, "tcp", outside4, 80, "out "+hostOut4.String())
	expect(t, "old pod to outside", old.NetNS, "tcp", outside4, 80, "out "+hostOut4.String())
	if err := m.SetPodCIDR(t.Context(), nil); !errors.Is(err, ErrConfig) {
		t.Errorf("no subnet: %v", err)
	}
}

// Where the host has no IPv6, or not on lo, pods have IPv4 alone.
func TestHostWithoutIPv6(t *testing.T) {
	for _, link := range []string{"default", "lo"} {
		t.Run(link, func(t *testing.T) {
			must(t, setSysctl("ipv6/conf/"+link+"/disable_ipv6", "1"))
			defer func() { must(t, setSysctl("ipv6/conf/"+link+"/disable_ipv6", "0")) }()
			if p := connect(t, started(t, testConfig(t)), "a"); len(p.ips) != 1 {
				t.Errorf("addresses %v", p.ips)
			}
		})
	}
}

func TestIPv6ComesLater(t *testing.T) {
	must(t, setSysctl("ipv6/conf/default/disable_ipv6", "1"))
	m := started(t, testConfig(t))
	a := connect(t, m, "a")
	must(t, setSysctl("ipv6/conf/default/disable_ipv6", "0"))
	b := connect(t, m, "b")
	if len(a.ips) != 1 || len(b.ips) != 2 {
		t.Errorf("addresses %v and %v", a.ips, b.ips)
	}
	serve(t, b.NetNS, "b", "tcp", 80)
	expect(t, "by IPv6", "", "tcp", b.ips[1], 80, "b fd85:c0ac:1e00::1")
}

// A link with so small an MTU has no IPv6.
func TestSmallUplink(t *testing.T) {
	m := started(t, testConfig(t))
	m.builtin.mtu = 1200
	if p := connect(t, m, "a"); len(p.ips) != 1 {
		t.Errorf("addresses %v", p.ips)
	}
}

// outsideOf makes another machine on a link of its own, with a default route of the host by it.
func outsideOf(t *testing.T, name string, third byte, isDefault bool) (netNS string, ip netip.Addr) {
	t.Helper()
	host, ip := netip.AddrFrom4([4]byte{198, 51, third, 1}), netip.AddrFrom4([4]byte{198, 51, third, 2})
	netNS, _ = newNetNS(t)
	ns, err := openNetns(netNS)
	must(t, err)
	defer ns.Close()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	must(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "out", PeerNamespace: netlink.NsFd(ns.Fd())}))
	t.Cleanup(func() { must(t, netlink.LinkDel(&netlink.Veth{LinkAttrs: attrs})) })
	link, err := netlink.LinkByName(name)
	must(t, err)
	must(t, netlink.AddrAdd(link, &netlink.Addr{IPNet: ipNet(host, 24)}))
	must(t, netlink.LinkSetUp(link))
	must(t, within(t, netNS, func() error {
		out, err := netlink.LinkByName("out")
		if err != nil {
			return err
		}
		if err := errors.Join(netlink.AddrAdd(out, &netlink.Addr{IPNet: ipNet(ip, 24)}), netlink.LinkSetUp(out)); err != nil {
			return err
		}
		return netlink.RouteAdd(&netlink.Route{LinkIndex: out.Attrs().Index, Gw: host.AsSlice()})
	}))
	if isDefault {
		must(t, netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Gw: ip.AsSlice(), Priority: int(third)}))
	}
	return netNS, ip
}

// A host that forwards only because of its pods does not route between its uplinks, whatever
// happens to the rules, and whenever an uplink comes.
func TestHostDoesNotRouteForTheLAN(t *testing.T) {
	for _, before := range []string{"0", "1"} {
		t.Run("forwarding was "+before, func(t *testing.T) {
			must(t, setSysctl("ipv4/ip_forward", before))
			c := testConfig(t)
			one, _ := outsideOf(t, "uplink1", 1, true)
			m := started(t, c)
			connect(t, m, "a")
			two, twoIP := outsideOf(t, "uplink2", 2, true) // later than the first pod
			lan, lanIP := outsideOf(t, "uplink3", 3, false)
			serve(t, two, "two", "tcp", 80)
			serve(t, lan, "lan", "tcp", 80)
			translate := exec.Command("nft", "-f", "-")
			translate.Stdin = strings.NewReader("table ip translates { chain prerouting { type nat hook prerouting priority dstnat; " +
				"tcp dport 8080 dnat to " + netip.AddrPortFrom(twoIP, 80).String() + "; }; }")
			if said, err := translate.CombinedOutput(); err != nil {
				t.Fatalf("nft: %v: %s", err, said)
			}
			t.Cleanup(func() {
				if said, err := exec.Command("nft", "delete", "table", "ip", "translates").CombinedOutput(); err != nil {
					t.Errorf("nft: %v: %s", err, said)
				}
			})
			check := func(when string) {
				t.Helper()
				// The message about the route is on its way.
				for end := time.Now().Add(patience); ; {
					_, err := ask(t, one, "tcp", twoIP, 80, silence)
					if (err == nil) == (before == "1") {
						break
					}
					if time.Now().After(end) {
						t.Fatalf("%s: between uplinks: %v", when, err)
					}
				}
				expect(t, when+", to a link without default route", one, "tcp", lanIP, 80, "lan 198.51.1.2")
				// As a Service does whose endpoint is a pod of another node.
				expect(t, when+", by a port that the host translates", one, "tcp", netip.MustParseAddr("198.51.1.1"), 8080, "two 198.51.1.2")
			}
			check("at first")
			must(t, m.fwRemove())
			connect(t, m, "b") // makes the table again
			check("after the rules were flushed")
			m = started(t, c)
			must(t, m.Recover(t.Context(), []string{"a", "b"}))
			check("after a restart")
		})
	}
}

package network

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/internal/testkit"
)

// Where distributions have the reference plugins (containernetworking-plugins on Debian).
const distributionPlugins = "/usr/lib/cni"

// The addresses that real plugins give out.
var (
	real4, real6 = netip.MustParsePrefix("10.77.0.0/24"), netip.MustParsePrefix("fd77::/64")
	realGateway4 = real4.Addr().Next()
	realGateway6 = real6.Addr().Next()
)

// realPlugins is a Manager with a configuration of real plugins. In the plugins' JSON, IPAM is
// replaced by host-local with both families. leased returns the addresses that are given out.
func realPlugins(t *testing.T, bin, version, plugins string) (c Config, leased func() []string) {
	t.Helper()
	if testing.Short() {
		t.Skip("that is for the race detector, which sees nothing of what other programs do")
	}
	c = testConfig(t)
	c.CNIBinDirs = []string{bin}
	dir := t.TempDir()
	ipam := fmt.Sprintf(
		`"ipam":{"type":"host-local","dataDir":%q,"ranges":[[{"subnet":%q}],[{"subnet":%q}]],"routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0"}]}`, dir,
		real4, real6,
	)
	config := fmt.Sprintf(`{"cniVersion":%q,"name":"real","plugins":[%s]}`, version, strings.ReplaceAll(plugins, "IPAM", ipam))
	if !json.Valid([]byte(config)) {
		t.Fatalf("not JSON: %s", config)
	}
	writeConf(t, c, "10-real.conflist", config)
	// The plugins leave chains of firewall rules on purpose. Before that, started takes down all
	// pods.
	t.Cleanup(func() {
		if out, err := exec.Command("nft", "flush", "ruleset").CombinedOutput(); err != nil {
			t.Errorf("nft flush ruleset: %v: %s", err, out)
		}
	})
	return c, func() []string {
		t.Helper()
		files, err := filepath.Glob(filepath.Join(dir, "real", "*[0-9a-f]"))
		must(t, err)
		var ips []string
		for _, f := range files {
			if _, err := netip.ParseAddr(filepath.Base(f)); err == nil {
				ips = append(ips, filepath.Base(f))
			}
		}
		return ips
	}
}

// removeLink has a link go that plugins leave on purpose, before started looks what is left.
func removeLink(t *testing.T, name string) {
	t.Helper()
	t.Cleanup(func() {
		link, err := netlink.LinkByName(name)
		must(t, err)
		must(t, netlink.LinkDel(link))
	})
}

// ofBothFamilies fails unless a pod has an address of either range.
func ofBothFamilies(t *testing.T, p testPod) {
	t.Helper()
	if len(p.ips) != 2 || !real4.Contains(p.ips[0]) || !real6.Contains(p.ips[1]) {
		t.Fatalf("addresses %v, want one of %s and one of %s", p.ips, real4, real6)
	}
}

// reach is expect for TCP from wherever: until the kernel knows that no other has a link's IPv6
// address, it sends from another link's.
func reach(t *testing.T, what, path string, ip netip.Addr, port uint16, name string) {
	t.Helper()
	if got, err := ask(t, path, "tcp", ip, port, patience); err != nil || !strings.HasPrefix(got, name+" ") {
		t.Errorf("%s: tcp to %s port %d: %q, %v; want %s", what, ip, port, got, err, name)
	}
}

// gone takes a pod down, twice, and says so if its addresses stay leased.
func gone(t *testing.T, m *Manager, p testPod, leased func() []string) {
	t.Helper()
	must(t, m.Teardown(t.Context(), p.Pod))
	must(t, m.Teardown(t.Context(), p.Pod))
	for _, ip := range p.ips {
		if slices.Contains(leased(), ip.String()) {
			t.Errorf("%s is still leased", ip)
		}
	}
}

// shapers are the names of the links on which the host limits rates.
func shapers(t *testing.T) (names []string) {
	t.Helper()
	links, err := netlink.LinkList()
	for errors.Is(err, netlink.ErrDumpInterrupted) {
		links, err = netlink.LinkList()
	}
	must(t, err)
	for _, l := range links {
		queues, err := netlink.QdiscList(l)
		must(t, err)
		for _, q := range queues {
			if tbf, ok := q.(*netlink.Tbf); ok {
				names = append(names, fmt.Sprint(l.Type(), " ", tbf.Rate*8))
			}
		}
	}
	slices.Sort(names)
	return names
}

// firewallRules are those of the host that name an address, of iptables as the plugins call it.
func firewallRules(t *testing.T, ip netip.Addr) string {
	t.Helper()
	program := "iptables-save"
	if ip.Is6() {
		program = "ip6tables-save"
	}
	out, err := exec.Command(program).Output()
	must(t, err)
	var rules []string
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, ip.String()+"/") || strings.Contains(line, ip.String()+"]") || strings.Contains(line, ip.String()+":") {
			rules = append(rules, line)
		}
	}
	return strings.Join(rules, "")
}

func TestDistributionsBridgePlugin(t *testing.T) {
	c, leased := realPlugins(t, distributionPlugins, "1.0.0", `
		{"type":"bridge","bridge":"cni-real0","isGateway":true,"ipMasq":true,"hairpinMode":true,IPAM},
		{"type":"portmap","capabilities":{"portMappings":true}},
		{"type":"bandwidth","capabilities":{"bandwidth":true}},
		{"type":"firewall","backend":"iptables"}`)
	m := started(t, c)
	removeLink(t, "cni-real0")
	out := newOutside(t)
	path, _ := newNetNS(t)
	web := testPod{Pod: Pod{
		ID: "web", Name: "web", Namespace: "default", NetNS: path,
		Ports: []PortMapping{
			{Protocol: "tcp", HostPort: 8080, ContainerPort: 80},
			{Protocol: "udp", HostPort: 5353, ContainerPort: 53},
		},
		Annotations: map[string]string{ingressAnnotation: "40M", egressAnnotation: "20M"},
	}}
	r, err := m.Setup(t.Context(), web.Pod)
	must(t, err)
	web.ips = r.IPs
	ofBothFamilies(t, web)
	other := connect(t, m, "other")
	ofBothFamilies(t, other)
	serve(t, web.NetNS, "web", "tcp", 80)
	serve(t, web.NetNS, "web", "udp", 53)
	serve(t, out, "out", "tcp", 80)
	for i, ip := range web.ips {
		from := []netip.Addr{outside4, outside6}[i]
		host := []netip.Addr{hostOut4, hostOut6}[i]
		reach(t, "host to pod", "", ip, 80, "web")
		expect(t, "pod to pod", other.NetNS, "tcp", ip, 80, "web "+other.ips[i].String())
		expect(t, "pod to outside", other.NetNS, "tcp", from, 80, "out "+host.String())
		expect(t, "outside to a host port", out, "tcp", host, 8080, "web "+from.String())
		expect(t, "outside to a host port", out, "udp", host, 5353, "web "+from.String())
		if firewallRules(t, ip) == "" {
			t.Errorf("no rules for %s", ip)
		}
	}
	// What the pod gets is limited on its link, what it sends on one that the plugin makes for it.
	if got := fmt.Sprint(shapers(t)); got != "[ifb 20000000 veth 40000000]" {
		t.Errorf("links with limits: %s", got)
	}

	gone(t, m, web, leased)
	for _, ip := range web.ips {
		if rules := firewallRules(t, ip); rules != "" {
			t.Errorf("rules left for %s:\n%s", ip, rules)
		}
	}
	if got := shapers(t); len(got) > 0 {
		t.Errorf("limits left: %v", got)
	}
	expectNone(t, "after Teardown", out, "tcp", hostOut4, 8080)
	gone(t, m, other, leased)
}

func TestDistributionsPTPPlugin(t *testing.T) {
	c, leased := realPlugins(t, distributionPlugins, "1.0.0", `{"type":"ptp","ipMasq":true,IPAM}`)
	m := started(t, c)
	out := newOutside(t)
	a, b := connect(t, m, "a"), connect(t, m, "b")
	ofBothFamilies(t, a)
	ofBothFamilies(t, b)
	serve(t, b.NetNS, "b", "tcp", 80)
	serve(t, out, "out", "tcp", 80)
	for i, ip := range b.ips {
		reach(t, "host to pod", "", ip, 80, "b")
		expect(t, "pod to pod", a.NetNS, "tcp", ip, 80, "b "+a.ips[i].String())
		expect(t, "pod to outside", a.NetNS, "tcp", []netip.Addr{outside4, outside6}[i], 80, "out "+[]netip.Addr{hostOut4, hostOut6}[i].String())
	}
	gone(t, m, a, leased)
	gone(t, m, b, leased)
}

// Pods on the network that a link of the host leads to, each with a hardware address of its own.
func TestDistributionsMacvlanPlugin(t *testing.T) {
	c, leased := realPlugins(t, distributionPlugins, "1.0.0", `{"type":"macvlan","master":"lan","mode":"bridge",IPAM}`)
	m := started(t, c)
	neighbour := newLAN(t)
	a, b := connect(t, m, "a"), connect(t, m, "b")
	ofBothFamilies(t, a)
	ofBothFamilies(t, b)
	serve(t, b.NetNS, "b", "tcp", 80)
	serve(t, neighbour, "neighbour", "tcp", 80)
	for i, ip := range b.ips {
		gateway := []netip.Addr{realGateway4, realGateway6}[i]
		expect(t, "pod to pod", a.NetNS, "tcp", ip, 80, "b "+a.ips[i].String())
		expect(t, "neighbour to pod", neighbour, "tcp", ip, 80, "b "+gateway.String())
		expect(t, "pod to neighbour", a.NetNS, "tcp", gateway, 80, "neighbour "+a.ips[i].String())
	}
	gone(t, m, a, leased)
	gone(t, m, b, leased)
}

// newLAN makes a network at the host's link "lan" and returns the namespace of what else is on it,
// which has the address of the pods' gateway.
func newLAN(t *testing.T) string {
	t.Helper()
	path, _ := newNetNS(t)
	ns, err := openNetns(path)
	must(t, err)
	defer ns.Close()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "lan"
	must(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "lan", PeerNamespace: netlink.NsFd(ns.Fd())}))
	removeLink(t, "lan")
	here, err := netlink.LinkByName("lan")
	must(t, err)
	must(t, netlink.LinkSetUp(here))
	there, err := netlink.NewHandleAt(netns.NsHandle(ns.Fd()), unix.NETLINK_ROUTE)
	must(t, err)
	defer there.Close()
	link, err := there.LinkByName("lan")
	must(t, err)
	must(t, there.LinkSetUp(link))
	for _, ip := range []netip.Addr{realGateway4, realGateway6} {
		bits := real4.Bits()
		if ip.Is6() {
			bits = real6.Bits()
		}
		must(t, there.AddrAdd(link, &netlink.Addr{IPNet: ipNet(ip, bits), Flags: unix.IFA_F_NODAD}))
	}
	return path
}

// STATUS and GC of CNI 1.1, which are younger than the plugins of most distributions.
func TestReferencePluginsOfCNI11(t *testing.T) {
	reference, err := testkit.FindBin("tools", "cni")
	if err != nil {
		t.Fatalf("%v; hack/tools.sh cni builds them", err)
	}
	bin := t.TempDir()
	must(t, os.CopyFS(bin, os.DirFS(reference)))
	c, leased := realPlugins(t, bin, "1.1.0", `
		{"type":"bridge","bridge":"cni-real0","isGateway":true,IPAM},
		{"type":"portmap","backend":"nftables","capabilities":{"portMappings":true}}`)
	m := started(t, c)
	removeLink(t, "cni-real0")
	must(t, m.Ready(t.Context()))
	kept := connect(t, m, "kept", PortMapping{Protocol: "tcp", HostPort: 8080, ContainerPort: 80})
	ofBothFamilies(t, kept)
	lost := connect(t, m, "lost")
	serve(t, kept.NetNS, "kept", "tcp", 80)
	reach(t, "host to pod", "", kept.ips[0], 80, "kept")

	// What the bridge plugin needs for itself only it can know.
	must(t, os.Rename(filepath.Join(bin, "host-local"), filepath.Join(bin, "away")))
	if err := m.Ready(t.Context()); err == nil || !strings.Contains(err.Error(), `"host-local"`) {
		t.Errorf("without host-local: %v", err)
	}
	must(t, os.Rename(filepath.Join(bin, "away"), filepath.Join(bin, "host-local")))
	must(t, m.Ready(t.Context()))

	// As after the loss of the record.
	must(t, os.Remove(filepath.Join(c.StateDir, "cni", "lost.json")))
	m = New(c)
	must(t, m.Start(t.Context()))
	defer m.Close()
	must(t, m.Recover(t.Context(), []string{"kept"}))
	for _, ip := range lost.ips {
		if slices.Contains(leased(), ip.String()) {
			t.Errorf("%s is still leased", ip)
		}
	}
	reach(t, "host to pod", "", kept.ips[0], 80, "kept")
	gone(t, m, kept, leased)
}

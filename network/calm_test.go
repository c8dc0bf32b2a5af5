package network

import (
	"net/netip"
	"path/filepath"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/internal/nspin"
)

// addresses6 are a link's IPv6 addresses in a network namespace.
func addresses6(t *testing.T, netNS, link string) (all []netlink.Addr) {
	t.Helper()
	must(t, within(t, netNS, func() error {
		l, err := netlink.LinkByName(link)
		if err != nil {
			return err
		}
		all, err = netlink.AddrList(l, netlink.FAMILY_V6)
		return err
	}))
	return all
}

func expectSysctl(t *testing.T, netNS, name, want string) {
	t.Helper()
	must(t, within(t, netNS, func() error {
		if v, err := readSysctl(name); err != nil || v != want {
			t.Errorf("%s is %q, %v, want %s", name, v, err, want)
		}
		return nil
	}))
}

// Regression, CVE-2020-10749: a pod that called itself a router got its neighbours' IPv6 traffic. And each pod's
// start sent every other pod what IPv6 looks for on a link.
func TestPodsIgnorePodsThatCallThemselvesRouters(t *testing.T) {
	m := started(t, testConfig(t))
	p := connect(t, m, "a")
	expectSysctl(t, p.NetNS, "ipv6/conf/eth0/accept_ra", "0")
	expectSysctl(t, p.NetNS, "ipv6/conf/eth0/accept_dad", "0")
	if addrs := addresses6(t, "", vethName("a")); len(addrs) != 0 {
		t.Errorf("a port of the bridge has %v", addrs)
	}
}

func TestPodWithSettingsOfItsOwn(t *testing.T) {
	m := started(t, testConfig(t))
	dir := filepath.Join(t.TempDir(), "pod")
	set, err := nspin.Create(t.Context(), dir, nspin.Spec{Net: true, Sysctls: map[string]string{
		"net.ipv6.conf.default.accept_ra": "2", "net.ipv6.conf.default.accept_dad": "2",
	}})
	must(t, err)
	defer func() { must(t, nspin.Remove(dir)) }()
	_, err = m.Setup(t.Context(), Pod{ID: "a", NetNS: set.Net})
	must(t, err)
	expectSysctl(t, set.Net, "ipv6/conf/eth0/accept_ra", "2")
	expectSysctl(t, set.Net, "ipv6/conf/eth0/accept_dad", "2")
}

func TestPodOfAnIPv4Range(t *testing.T) {
	c := testConfig(t)
	c.Subnets = []netip.Prefix{netip.MustParsePrefix("10.99.0.0/24")}
	m := started(t, c)
	p := connect(t, m, "a")
	if addrs := addresses6(t, p.NetNS, podIf); len(addrs) != 0 {
		t.Errorf("the pod has %v", addrs)
	}
	if addrs := addresses6(t, "", vethName("a")); len(addrs) != 0 {
		t.Errorf("a port of the bridge has %v", addrs)
	}
}

// A link with a smaller MTU than IPv6 needs has no settings of IPv6.
func TestPodOnAnUplinkWithoutIPv6(t *testing.T) {
	c := testConfig(t)
	c.Subnets = []netip.Prefix{netip.MustParsePrefix("10.99.0.0/24")}
	uplink := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "uplink0", MTU: 576}}
	must(t, netlink.LinkAdd(uplink))
	defer func() { must(t, netlink.LinkDel(uplink)) }()
	must(t, netlink.LinkSetUp(uplink))
	must(t, netlink.RouteAdd(&netlink.Route{LinkIndex: uplink.Attrs().Index, Dst: ipNet(netip.MustParseAddr("0.0.0.0"), 0), Scope: unix.RT_SCOPE_LINK}))
	m := started(t, c)
	a, b := connect(t, m, "a"), connect(t, m, "b")
	serve(t, a.NetNS, "a", "tcp", 80)
	expect(t, "from pod to pod", b.NetNS, "tcp", a.ip4(), 80, "a "+b.ip4().String())
	if l, err := netlink.LinkByName(vethName("a")); err != nil || l.Attrs().MTU != 576 {
		t.Errorf("link %v, %v", l, err)
	}
}

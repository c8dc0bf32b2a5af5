package network

import (
	"context"
	"net/netip"
	"path/filepath"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/internal/nspin"
)

// expectIPv6 looks at a link's IPv6 settings in a network namespace.
func expectIPv6(t *testing.T, netNS, link string, want map[string]string) {
	t.Helper()
	must(t, within(t, netNS, func() error {
		for name, value := range want {
			if v, err := readSysctl("ipv6/conf/" + link + "/" + name); err != nil || v != value {
				t.Errorf("%s of %s is %q, %v, want %s", name, link, v, err, value)
			}
		}
		return nil
	}))
}

// Values of addr_gen_mode (ip-sysctl.rst).
const genEUI64, genNone = "0", "1"

// Regression, CVE-2020-10749: a pod that called itself a router got its neighbours' IPv6 traffic. And each pod's
// start sent every other pod what IPv6 looks for on a link.
func TestPodsIgnorePodsThatCallThemselvesRouters(t *testing.T) {
	m := started(t, testConfig(t))
	p := connect(t, m, "a")
	expectIPv6(t, p.NetNS, podIf, map[string]string{"accept_ra": "0", "accept_dad": "0", "addr_gen_mode": genEUI64})
	expectIPv6(t, "", vethName("a"), map[string]string{"addr_gen_mode": genNone})
}

func TestPodOfAnIPv4RangeIgnoresThem(t *testing.T) {
	c := testConfig(t)
	c.Subnets = []netip.Prefix{netip.MustParsePrefix("10.99.0.0/24")}
	m := started(t, c)
	p := connect(t, m, "a")
	expectIPv6(t, p.NetNS, podIf, map[string]string{"accept_ra": "0", "accept_dad": "0", "addr_gen_mode": genNone})
	expectIPv6(t, "", vethName("a"), map[string]string{"addr_gen_mode": genNone})
}

// What a pod asks for counts, not what its namespace has from elsewhere (net.core.devconf_inherit_init_net).
func TestPodWithSettingsOfItsOwn(t *testing.T) {
	m := started(t, testConfig(t))
	sysctls := map[string]string{"net.ipv6.conf.default.accept_ra": "2", "net.ipv6.conf.default.accept_dad": "2"}
	for id, tc := range map[string]struct{ asked, want map[string]string }{
		"asked for": {sysctls, map[string]string{"accept_ra": "2", "accept_dad": "2"}},
		"inherited": {nil, map[string]string{"accept_ra": "0", "accept_dad": "0"}},
	} {
		dir := filepath.Join(t.TempDir(), "pod")
		set, err := nspin.Create(t.Context(), dir, nspin.Spec{Net: true, Sysctls: sysctls})
		must(t, err)
		defer func() { must(t, nspin.Remove(context.WithoutCancel(t.Context()), dir)) }()
		_, err = m.Setup(t.Context(), Pod{ID: id, NetNS: set.Net, Sysctls: tc.asked})
		must(t, err)
		expectIPv6(t, set.Net, podIf, tc.want)
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

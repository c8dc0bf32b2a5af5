package network

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/coracle-project/coracle/network/firewall"
)

// Regression: ranges of pods that were put in force half way counted as in force. Pods then had no
// address, and another call did nothing.
func TestRangesThatFailAreTriedAgain(t *testing.T) {
	for _, empty := range []bool{false, true} {
		name := map[bool]string{false: "with a pod", true: "without pods"}[empty]
		t.Run(name, func(t *testing.T) {
			m := started(t, testConfig(t))
			a := connect(t, m, "a")
			serve(t, a.NetNS, "a", "tcp", 80)
			if empty { // the host gives up the old ranges
				must(t, m.Teardown(t.Context(), a.Pod))
				must(t, m.builtin.reaper.idle(t.Context()))
				awaitLeases(t, m, 0)
			}
			works := m.builtin.fw
			m.builtin.fw = firewall.New(strings.Repeat("x", 1000), linkGroup(m.config.Name))
			ranges := []netip.Prefix{netip.MustParsePrefix("10.77.1.0/24"), netip.MustParsePrefix("fd00:77:1::/64")}
			if err := m.SetPodCIDR(t.Context(), ranges); err == nil {
				t.Fatal("no error, so the test shows nothing")
			}
			m.builtin.fw = works
			check := func(id string, from []netip.Prefix) {
				t.Helper()
				p := connect(t, m, id)
				serve(t, p.NetNS, id, "tcp", 80)
				if len(p.ips) != len(from) {
					t.Fatalf("pod %s has addresses %v, want some of %v", id, p.ips, from)
				}
				for i, ip := range p.ips {
					if !from[i].Contains(ip) {
						t.Errorf("pod %s has address %s, want one of %s", id, ip, from[i])
					}
					expect(t, "from the host", "", "tcp", ip, 80, id+" "+from[i].Addr().Next().String())
				}
			}
			check("b", m.builtin.subnets())
			must(t, m.SetPodCIDR(t.Context(), ranges))
			check("c", ranges)
		})
	}
}

// A pod gets an address of each range, or none at all.
func TestNoPodWithoutTheHostsAddress(t *testing.T) {
	m := started(t, testConfig(t))
	connect(t, m, "a")
	before := m.builtin.subnets()
	must(t, m.builtin.setSubnets([]netip.Prefix{netip.MustParsePrefix("10.77.1.0/24"), before[1]}))
	path, _ := newNetNS(t)
	if r, err := m.Setup(t.Context(), Pod{ID: "b", NetNS: path}); !errors.Is(err, errOtherRanges) {
		t.Errorf("addresses %v, %v", r.IPs, err)
	}
	must(t, m.builtin.setSubnets(before))
	if b := connect(t, m, "b"); len(b.ips) != 2 {
		t.Errorf("addresses %v", b.ips)
	}
}

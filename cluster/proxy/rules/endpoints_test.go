package rules

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/cluster/proxy/testnet"
)

func TestEndpointsChange(t *testing.T) {
	n := newNode(t)
	table := n.open()
	s := netip.MustParseAddr(service4)
	set := func(endpoints ...netip.AddrPort) {
		t.Helper()
		n.apply(table, map[Key]*Port{"x": {
			Protocol: unix.IPPROTO_TCP, Backends: []Backend{{Endpoints: endpoints}},
			Frontends: []Frontend{{Addr: s, Port: 80}},
		}})
	}
	c := n.Pod("c")
	c.Serve("tcp", 8080)
	reached := func() string {
		seen := map[string]bool{}
		for range 40 { // that one of three is not seen has a chance of 1 to 10^7
			got, err := n.a.Ask("tcp", at(service4, 80))
			if err != nil {
				t.Fatal(err)
			}
			seen[strings.Fields(got)[0]] = true
		}
		return fmt.Sprint(seen)
	}
	all := []netip.AddrPort{to(n.a.IPv4), to(n.b.IPv4), to(c.IPv4)}
	for _, step := range []struct {
		endpoints []netip.AddrPort
		want      string
	}{
		{all, "map[a:true b:true c:true]"},
		{all[1:], "map[b:true c:true]"},
		{[]netip.AddrPort{all[1]}, "map[b:true]"},
		{[]netip.AddrPort{all[2]}, "map[c:true]"},
		{all, "map[a:true b:true c:true]"},
	} {
		set(step.endpoints...)
		if got := reached(); got != step.want {
			t.Errorf("%d endpoints: reached %s, want %s", len(step.endpoints), got, step.want)
		}
	}
	set()
	n.refused(n.a, "tcp", at(service4, 80))
	n.apply(table, map[Key]*Port{"x": nil})
	n.refused(n.a, "tcp", at(service4, 80))
}

// forgetFlows deletes the connection tracker's entries.
func (n *node) forgetFlows() {
	n.Within(func() {
		if err := netlink.ConntrackTableFlush(netlink.ConntrackTable); err != nil {
			n.t.Error(err)
		}
	})
}

func TestAffinity(t *testing.T) {
	n := newNode(t)
	table := n.open()
	ports := func(pods ...*testnet.Space) map[Key]*Port {
		all := map[Key]*Port{}
		each(func(network, address, _ string, ip func(*testnet.Space) netip.Addr, port func([]Backend, ...Frontend) *Port) {
			b := Backend{Affinity: 3 * time.Hour}
			for _, p := range pods {
				b.Endpoints = append(b.Endpoints, to(ip(p)))
			}
			all[Key(network)] = port([]Backend{b}, Frontend{Addr: netip.MustParseAddr(address), Port: 80}, Frontend{Port: 30080, Masquerade: true})
		})
		return all
	}
	c := n.Pod("c")
	c.Serve("tcp", 8080)
	c.Serve("udp", 8080)
	n.apply(table, ports(n.a, n.b))
	first := map[string]string{}
	same := func(when string) {
		t.Helper()
		each(func(network, address, node string, _ func(*testnet.Space) netip.Addr, _ func([]Backend, ...Frontend) *Port) {
			for range 12 {
				for _, target := range []string{at(address, 80), at(node, 30080)} {
					got, err := n.Outside.Ask(network, target)
					if err != nil {
						t.Fatal(err)
					}
					pod := strings.Fields(got)[0]
					if first[network] == "" {
						first[network] = pod
					}
					if pod != first[network] {
						t.Errorf("%s: %s %s went to %s, before to %s", when, network, target, pod, first[network])
					}
				}
			}
		})
	}
	same("at first")
	n.apply(table, ports(n.a, n.b, c))
	same("with one endpoint more")
	if err := table.Close(); err != nil {
		t.Fatal(err)
	}
	table = n.open()
	n.apply(table, ports(c, n.b, n.a))
	same("after a restart")
	clear(first)
	n.apply(table, ports(c))
	n.forgetFlows() // a client's port may be one that had a flow to another endpoint
	same("when the endpoint is gone")
	for network, pod := range first {
		if pod != "c" {
			t.Errorf("%s goes to %s, which is no endpoint any more", network, pod)
		}
	}
	if out := n.Run("nft list table inet " + tableName); !strings.Contains(out, "@aff4") {
		t.Errorf("nft shows:\n%s", out)
	}
}

// Two Services may ask for one address, for example of a load balancer.
func TestDisputedAddress(t *testing.T) {
	n := newNode(t)
	table := n.open()
	port := func(pod *testnet.Space) *Port {
		return &Port{
			Protocol: unix.IPPROTO_TCP, Backends: []Backend{{Endpoints: []netip.AddrPort{to(pod.IPv4)}}},
			Frontends: []Frontend{{Addr: netip.MustParseAddr("203.0.113.7"), Port: 80}},
		}
	}
	n.apply(table, map[Key]*Port{"b": port(n.b)})
	n.apply(table, map[Key]*Port{"a": port(n.a)})
	n.expect(n.Outside, "tcp", "203.0.113.7:80", "b "+testnet.Outside4)
	n.apply(table, map[Key]*Port{"b": nil})
	n.expect(n.Outside, "tcp", "203.0.113.7:80", "a "+testnet.Outside4)
	n.apply(table, map[Key]*Port{"a": nil, "b": port(n.b)}) // from one to the other at once
	n.expect(n.Outside, "tcp", "203.0.113.7:80", "b "+testnet.Outside4)
	table = n.reopen(table)
	n.apply(table, map[Key]*Port{"b": port(n.b), "c": port(n.a)})
	n.expect(n.Outside, "tcp", "203.0.113.7:80", "b "+testnet.Outside4)
}

func TestMoreEndpointsThanFit(t *testing.T) {
	n := newNode(t)
	table := n.open()
	endpoints := []netip.AddrPort{to(n.b.IPv4)}
	for i := range 2000 {
		endpoints = append(endpoints, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 245, byte(i / 250), byte(i%250 + 1)}), 80))
	}
	port := func(all []netip.AddrPort) map[Key]*Port {
		return map[Key]*Port{"x": {
			Protocol: unix.IPPROTO_TCP, Backends: []Backend{{Endpoints: all}},
			Frontends: []Frontend{{Addr: netip.MustParseAddr(service4), Port: 80}},
		}}
	}
	n.apply(table, port(endpoints))
	if got := strings.Count(n.Run("nft list map inet "+tableName+" ep4"), "10.245."); got != MaxEndpoints-1 {
		t.Errorf("%d endpoints in the kernel", got)
	}
	n.apply(table, port(endpoints[:1]))
	n.expect(n.a, "tcp", at(service4, 80), "b "+n.a.IPv4.String())
}

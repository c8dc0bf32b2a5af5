package rules

import (
	"fmt"
	"net/netip"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/cluster/proxy/testnet"
)

// What is sent ahead leads nowhere before Apply, and makes no difference to the table afterwards.
func TestStage(t *testing.T) {
	for name, between := range map[string]func(n *node, ports map[Key]*Port){
		"and Apply":       func(*node, map[Key]*Port) {},
		"and a flush":     func(n *node, _ map[Key]*Port) { n.Run("nft flush ruleset") },
		"and a foreigner": func(n *node, _ map[Key]*Port) { n.Run("nft flush map inet " + tableName + " ep4") },
		"and another change": func(_ *node, ports map[Key]*Port) {
			for k, p := range ports {
				other := *p
				ports[k] = &other
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			ports := map[Key]*Port{}
			each(func(network, address, _ string, ip func(*testnet.Space) netip.Addr, port func([]Backend, ...Frontend) *Port) {
				b := Backend{Endpoints: []netip.AddrPort{to(ip(n.a)), to(ip(n.b))}}
				if strings.HasPrefix(network, "udp") {
					b.Affinity = time.Hour
				}
				ports[Key(network)] = port([]Backend{b, {}}, Frontend{Addr: netip.MustParseAddr(address), Port: 80},
					Frontend{Port: 30080, Backend: 1, Inside: 0})
			})
			table := n.open()
			if err := table.Stage(ports); err != nil || len(table.staged) > 0 {
				t.Fatalf("before Refuse: %v, %v", table.staged, err)
			}
			if err := table.Refuse(); err != nil {
				t.Fatal(err)
			}
			if err := table.Stage(ports); err != nil || len(table.staged) != len(ports) {
				t.Fatalf("%v, %v", table.staged, err)
			}
			if out := n.Run("nft list map inet " + tableName + " ep6"); strings.Count(out, n.b.IPv6.String()) != 2 {
				t.Errorf("sent ahead are:\n%s", out)
			}
			n.refused(n.a, "tcp", at(service4, 80))
			between(n, ports)
			switch name {
			case "and a flush":
				<-table.Changed()
				if _, err := table.Repair(t.Context()); err != nil {
					t.Fatal(err)
				}
			case "and a foreigner": // Apply sees it first
				for deadline := time.Now().Add(10 * time.Second); len(table.Changed()) == 0; runtime.Gosched() {
					if time.Now().After(deadline) {
						t.Fatal("the change is not noticed")
					}
				}
			}
			n.apply(table, ports)
			select {
			case <-table.Changed():
				t.Error("the table's own transactions count as someone else's")
			default:
			}
			staged := testnet.SortedLines(n.Run("nft -nn list ruleset"))
			each(func(network, address, _ string, ip func(*testnet.Space) netip.Addr, _ func([]Backend, ...Frontend) *Port) {
				for range 8 {
					if got, err := n.Outside.Ask(network, at(address, 80)); err != nil || !strings.HasSuffix(got, ip(n.Outside).String()) {
						t.Errorf("%s: %q, %v", network, got, err)
					}
				}
			})
			plain := newNode(t)
			other := plain.open()
			plain.apply(other, ports)
			// The numbers of backends and ids may differ.
			if got, want := strings.Count(staged, "\n"), strings.Count(testnet.SortedLines(plain.Run("nft -nn list ruleset")), "\n"); got != want {
				t.Errorf("the table has %d lines, without Stage %d:\n%s", got, want, staged)
			}
			n.apply(table, map[Key]*Port{"tcp4": nil, "udp4": nil, "tcp6": nil, "udp6": nil})
			if out := n.Run("nft list map inet " + tableName + " ep4"); strings.Contains(out, "elements") {
				t.Errorf("left are:\n%s", out)
			}
		})
	}
}

// A list of elements is cut before it is longer than an attribute can be.
func TestStageManyEndpoints(t *testing.T) {
	n := newNode(t)
	table := n.open()
	if err := table.Refuse(); err != nil {
		t.Fatal(err)
	}
	ports := services(300)
	for _, p := range services(300) {
		six := *p
		six.IPv6, six.Backends = true, []Backend{{}}
		for _, e := range p.Backends[0].Endpoints {
			b := e.Addr().As4()
			six.Backends[0].Endpoints = append(six.Backends[0].Endpoints,
				netip.AddrPortFrom(netip.AddrFrom16([16]byte{0: 0xfd, 12: b[0], 13: b[1], 14: b[2], 15: b[3]}), e.Port()))
		}
		six.Frontends = []Frontend{{Addr: netip.MustParseAddr("fd00:96::" + p.Frontends[0].Addr.String()), Port: 80}}
		ports[Key(p.Frontends[0].Addr.String())] = &six
	}
	ports["sctp"] = &Port{
		Protocol: unix.IPPROTO_SCTP, Backends: []Backend{{Endpoints: []netip.AddrPort{to(n.b.IPv4)}}},
		Frontends: []Frontend{{Addr: netip.MustParseAddr(service4), Port: 99}},
	}
	var more []netip.AddrPort
	for i := range commonCount + 4 { // of such a count there is no chain yet
		more = append(more, netip.AddrPortFrom(netip.AddrFrom4([4]byte{12, 0, 0, byte(i)}), 80))
	}
	ports["more"] = &Port{
		Protocol: unix.IPPROTO_TCP, Backends: []Backend{{Endpoints: more}},
		Frontends: []Frontend{{Addr: netip.MustParseAddr(service4), Port: 98}},
	}
	if err := table.Stage(ports); err != nil {
		t.Fatal(err)
	}
	chain := fmt.Sprintf("nft list chain inet %s pick4_%d", tableName, len(more))
	staged := n.Run(chain)
	n.apply(table, ports)
	if out := n.Run(chain); out != staged || strings.Count(out, "dnat") != 2 {
		t.Errorf("the chain is\n%s, and was\n%s", out, staged)
	}
	for set, want := range map[string]int{"ep4": 3001 + commonCount + 4, "ep6": 3000, "svc4": 302, "svc6": 300} {
		if got := strings.Count(n.Run("nft list map inet "+tableName+" "+set), " : ") - 1; got != want { // the type has one, too
			t.Errorf("%d elements in %s, want %d", got, set, want)
		}
	}
}

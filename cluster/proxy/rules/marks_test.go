package rules

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/cluster/proxy/testnet"
)

// others adds rules of another program.
func (n *node) others(rules ...string) {
	n.t.Helper()
	for _, r := range rules {
		n.Run("nft add " + r)
	}
}

// counted returns how many packets a counter of another program has.
func (n *node) counted(name string) string {
	n.t.Helper()
	for line := range strings.Lines(n.Run("nft list counter inet others " + name)) {
		if words := strings.Fields(line); words[0] == "packets" {
			return words[1]
		}
	}
	n.t.Fatalf("no counter %s", name)
	return ""
}

// A CNI plugin's rule that masquerades what has a bit of the mark (portmap's is 0x2000) must not
// see one of ours, and what others mark must stay marked.
func TestMarksBelongToOthers(t *testing.T) {
	for name, noLabels := range map[string]bool{"labels": false, "no labels": true} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			n.Outside.Serve("tcp", 8080)
			table := n.open()
			table.noLabels = noLabels
			ports := map[Key]*Port{}
			for i := range 8 { // the numbers of backends have all combinations of three bits
				for _, ip := range []string{service4, service6} {
					a, outside := netip.MustParseAddr(ip), n.Outside.IPv4
					if a.Is6() {
						outside = n.Outside.IPv6
					}
					b := Backend{Endpoints: []netip.AddrPort{to(outside)}}
					if i%2 == 1 {
						b.Affinity = time.Hour
					}
					ports[Key(fmt.Sprint(ip, i))] = &Port{
						Protocol: unix.IPPROTO_TCP, IPv6: a.Is6(), Backends: []Backend{b}, Frontends: []Frontend{{Addr: a, Port: uint16(80 + i)}},
					}
				}
			}
			n.apply(table, ports)
			n.others("table inet others", "counter inet others kept", "counter inet others lost", "counter inet others ours",
				"counter inet others left",
				"chain inet others early { type filter hook prerouting priority mangle; }",
				"rule inet others early ct state new tcp dport 80-81 meta mark set 0x77 ct mark set 0x55",
				"rule inet others early ct state new tcp dport 82 meta mark set 0x2000",
				"chain inet others forward { type filter hook forward priority filter; }",
				"chain inet others postrouting { type nat hook postrouting priority srcnat; }",
				"rule inet others postrouting meta mark & 0x2000 != 0 masquerade",
				"chain inet others last { type filter hook postrouting priority 300; }",
				"rule inet others last ct state new meta priority != 0 counter name left")
			for i := range 8 {
				port := fmt.Sprintf("ct state new tcp dport 8080 ct original proto-dst %d", 80+i)
				if i < 2 {
					n.others("rule inet others last "+port+" meta mark 0x77 ct mark 0x55 counter name kept",
						"rule inet others last "+port+" meta mark != 0x77 counter name lost",
						"rule inet others last "+port+" ct mark != 0x55 counter name lost")
				} else if i > 2 {
					n.others("rule inet others forward " + port + " meta mark != 0 counter name ours")
				}
			}
			for _, v := range []struct {
				address, node string
				client        netip.Addr
			}{{service4, testnet.Node4, n.a.IPv4}, {service6, testnet.Node6, n.a.IPv6}} {
				for i := range 8 {
					want := "outside " + v.client.String()
					if i == 2 { // the other program masquerades what it marked, so the test can find one of ours
						want = "outside " + v.node
					}
					n.expect(n.a, "tcp", at(v.address, 80+i), want)
				}
			}
			if kept, lost := n.counted("kept"), n.counted("lost"); kept == "0" || lost != "0" {
				t.Errorf("%s connections have the marks that another program gave them, %s have not", kept, lost)
			}
			if got := n.counted("ours"); (got == "0") == noLabels {
				t.Errorf("%s connections have a mark that no one gave them", got)
			}
			if got := n.counted("left"); got != "0" {
				t.Errorf("%s connections have a priority that no one gave them", got)
			}
			if out := n.Run("nft list table inet " + tableName); strings.Contains(out, "label") == noLabels {
				t.Errorf("nft shows:\n%s", out)
			}
		})
	}
}

// Others may set marks between the choice of an endpoint and postrouting, for example to restore
// the connection's.
func TestMarksSetByOthersChangeNothing(t *testing.T) {
	n := newNode(t)
	table := n.open()
	ports := map[Key]*Port{}
	each(func(network, address, _ string, ip func(*testnet.Space) netip.Addr, port func([]Backend, ...Frontend) *Port) {
		ports[Key(network)] = port([]Backend{{Endpoints: []netip.AddrPort{to(ip(n.b))}}},
			Frontend{Addr: netip.MustParseAddr(address), Port: 80}, Frontend{Port: 30080, Masquerade: true})
	})
	n.apply(table, ports)
	n.others("table inet others", "counter inet others seen",
		"chain inet others prerouting { type filter hook prerouting priority -50; }",
		"chain inet others forward { type filter hook forward priority filter; }")
	for _, mark := range []string{"0x0", "0xffffffff"} {
		n.others("rule inet others prerouting ct state new meta mark set "+mark,
			"rule inet others forward ct state new meta mark set "+mark+" counter name seen")
		each(func(network, address, node string, ip func(*testnet.Space) netip.Addr, _ func([]Backend, ...Frontend) *Port) {
			n.expect(n.Outside, network, at(address, 80), "b "+ip(n.Outside).String())
			n.expect(n.Outside, network, at(node, 30080), "b "+node)
			n.expect(n.b, network, at(address, 80), "b "+node)
		})
	}
	if n.counted("seen") == "0" {
		t.Error("the other program saw no packet, so the test shows nothing")
	}
}

package rules

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/cluster/proxy/testnet"
)

const (
	service4, service6 = "10.96.0.10", "fd00:96::10"
	tableName          = "coracle-services-test"
)

// node is a node with a table and two pods.
type node struct {
	*testnet.Node
	t    *testing.T
	a, b *testnet.Space
}

func newNode(t *testing.T) *node {
	n := &node{Node: testnet.New(t), t: t}
	n.a, n.b = n.Pod("a"), n.Pod("b")
	for _, pod := range []*testnet.Space{n.a, n.b} {
		pod.Serve("tcp", 8080)
		pod.Serve("udp", 8080)
	}
	return n
}

func config() Config {
	return Config{
		Name:    tableName,
		Ranges:  []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("fd00:96::/112")},
		NodeIPs: []netip.Addr{netip.MustParseAddr(testnet.Node4), netip.MustParseAddr(testnet.Node6)},
	}
}

// open opens the table.
func (n *node) open() *Table {
	n.t.Helper()
	return testnet.Open(n.t, &n.Space, func() (*Table, error) { return Open(config()) })
}

func (n *node) apply(table *Table, ports map[Key]*Port) {
	n.t.Helper()
	change := Change{Ports: ports, Pods: Pods{n.a.IPv4: true, n.a.IPv6: true, n.b.IPv4: true, n.b.IPv6: true}}
	if err := table.Apply(n.t.Context(), change); err != nil {
		n.t.Fatal(err)
	}
}

// protocols are those of the tests with traffic, in both families.
var protocols = []struct {
	network string
	number  byte
	ipv6    bool
}{{"tcp4", unix.IPPROTO_TCP, false}, {"udp4", unix.IPPROTO_UDP, false}, {"tcp6", unix.IPPROTO_TCP, true}, {"udp6", unix.IPPROTO_UDP, true}}

// each runs f for each protocol.
func each(f func(network, address, node string, ip func(*testnet.Space) netip.Addr, port func([]Backend, ...Frontend) *Port)) {
	for _, p := range protocols {
		address, node := service4, testnet.Node4
		ip := func(s *testnet.Space) netip.Addr { return s.IPv4 }
		if p.ipv6 {
			address, node = service6, testnet.Node6
			ip = func(s *testnet.Space) netip.Addr { return s.IPv6 }
		}
		f(p.network, address, node, ip, func(b []Backend, f ...Frontend) *Port {
			return &Port{Protocol: p.number, IPv6: p.ipv6, Backends: b, Frontends: f}
		})
	}
}

func to(a netip.Addr) netip.AddrPort { return netip.AddrPortFrom(a, 8080) }

func at(address string, port int) string {
	return netip.AddrPortFrom(netip.MustParseAddr(address), uint16(port)).String()
}

func (n *node) expect(s *testnet.Space, network, address, want string) {
	n.t.Helper()
	if got, err := s.Ask(network, address); err != nil || got != want {
		n.t.Errorf("%s %s from %s: got %q, %v, want %q", network, address, s.Name, got, err, want)
	}
}

func (n *node) refused(s *testnet.Space, network, address string) {
	n.t.Helper()
	// The kernel tells the node's own sender of a datagram of the drop itself, before the ICMP
	// error.
	own := s == &n.Space && strings.HasPrefix(network, "udp")
	if got, err := s.Ask(network, address); !errors.Is(err, unix.ECONNREFUSED) && !(own && errors.Is(err, unix.EPERM)) {
		n.t.Errorf("%s %s from %s: got %q, %v, want a refusal", network, address, s.Name, got, err)
	}
}

func TestServiceAddress(t *testing.T) {
	n := newNode(t)
	table := n.open()
	ports := map[Key]*Port{}
	each(func(network, address, _ string, ip func(*testnet.Space) netip.Addr, port func([]Backend, ...Frontend) *Port) {
		s := netip.MustParseAddr(address)
		ports[Key(network)] = port([]Backend{{Endpoints: []netip.AddrPort{to(ip(n.b))}}}, Frontend{Addr: s, Port: 80})
		ports[Key(network+" none")] = port([]Backend{{}}, Frontend{Addr: s, Port: 81})
		ports[Key(network+" elsewhere")] = port([]Backend{{Drop: true}}, Frontend{Addr: s, Port: 82})
	})
	n.apply(table, ports)
	each(func(network, address, node string, ip func(*testnet.Space) netip.Addr, _ func([]Backend, ...Frontend) *Port) {
		n.expect(n.a, network, at(address, 80), "b "+ip(n.a).String())
		n.expect(&n.Space, network, at(address, 80), "b "+node)
		n.expect(n.b, network, at(address, 80), "b "+node) // itself, so its own address would not come back
		n.expect(n.Outside, network, at(address, 80), "b "+ip(n.Outside).String())
		for _, s := range []*testnet.Space{n.a, &n.Space, n.Outside} {
			n.refused(s, network, at(address, 81))
			n.refused(s, network, at(address, 83))
		}
		if err := n.a.Unanswered(network, at(address, 82)); err != nil {
			t.Error(err)
		}
	})
	if out := n.Run("nft list table inet " + tableName); !strings.Contains(out, "@ep4") {
		t.Errorf("nft shows:\n%s", out)
	}
}

func TestUnallocatedAddressIsRefused(t *testing.T) {
	n := newNode(t)
	n.Outside.Run("ip addr add 10.96.7.7/32 dev lo")
	n.Outside.Run("ip addr add fd00:96::77/128 dev lo nodad")
	n.Outside.Serve("tcp", 80)
	n.expect(&n.Space, "tcp", "10.96.7.7:80", "outside "+testnet.Node4) // without rules, it leaves the node
	n.expect(&n.Space, "tcp", "[fd00:96::77]:80", "outside "+testnet.Node6)
	n.Space.Run("ip addr add 10.96.9.9/32 dev lo")
	n.Serve("tcp", 90)
	n.apply(n.open(), nil)
	for _, s := range []*testnet.Space{&n.Space, n.a} {
		n.refused(s, "tcp", "10.96.7.7:80")
		n.refused(s, "udp", "10.96.7.7:80")
		n.refused(s, "tcp", "[fd00:96::77]:80")
		n.refused(s, "udp", "[fd00:96::77]:80")
	}
	n.expect(n.a, "tcp", "10.96.9.9:90", "node "+n.a.IPv4.String()) // an address that the node has itself
	n.expect(&n.Space, "tcp", testnet.Outside4+":80", "outside "+testnet.Node4)
}

func TestNodePortAndLoadBalancer(t *testing.T) {
	n := newNode(t)
	balancer := map[bool]string{false: "203.0.113.7", true: "2001:db8:7::7"}
	table := n.open()
	ports := map[Key]*Port{}
	each(func(network, address, _ string, ip func(*testnet.Space) netip.Addr, port func([]Backend, ...Frontend) *Port) {
		six := strings.HasSuffix(network, "6")
		b := netip.MustParseAddr(balancer[six])
		all := Backend{Endpoints: []netip.AddrPort{to(ip(n.b))}}
		ports[Key(network)] = port([]Backend{all}, Frontend{Port: 30080, Masquerade: true}, Frontend{Addr: b, Port: 80, Masquerade: true})
		// Local, where only pods of other nodes are endpoints: those of the node go there all the
		// same.
		none := Backend{Drop: true}
		ports[Key(network+" local none")] = port([]Backend{all, none}, Frontend{Port: 30081, Backend: 1}, Frontend{Addr: b, Port: 81, Backend: 1})
		ports[Key(network+" local")] = port([]Backend{{Endpoints: []netip.AddrPort{to(ip(n.a))}}, all}, Frontend{Port: 30082, Backend: 1},
			Frontend{Addr: b, Port: 82, Backend: 1})
		sources := []netip.Prefix{
			netip.PrefixFrom(ip(n.Outside), ip(n.Outside).BitLen()),
			netip.PrefixFrom(ip(n.Outside), ip(n.Outside).BitLen()-1),
		}
		ports[Key(network+" allowed")] = port([]Backend{all}, Frontend{Addr: b, Port: 83, Masquerade: true, Limited: true, Sources: sources})
		ports[Key(network+" limited")] = port([]Backend{all}, Frontend{Addr: b, Port: 84, Limited: true})
	})
	n.apply(table, ports)
	each(func(network, _, node string, ip func(*testnet.Space) netip.Addr, _ func([]Backend, ...Frontend) *Port) {
		b := balancer[strings.HasSuffix(network, "6")]
		for _, s := range []*testnet.Space{n.a, n.b, &n.Space, n.Outside} {
			n.expect(s, network, at(node, 30080), "b "+node)
			n.expect(s, network, at(b, 80), "b "+node)
		}
		for _, port := range []string{at(node, 30081), at(b, 81)} {
			if err := n.Outside.Unanswered(network, port); err != nil {
				t.Error(err)
			}
			n.expect(n.a, network, port, "b "+ip(n.a).String())
			n.expect(&n.Space, network, port, "b "+node)
		}
		for _, port := range []string{at(node, 30082), at(b, 82)} {
			n.expect(n.Outside, network, port, "b "+ip(n.Outside).String())
			n.expect(n.b, network, port, "a "+ip(n.b).String())
		}
		n.expect(n.Outside, network, at(b, 83), "b "+node)
		for _, port := range []string{at(b, 84)} {
			if err := n.Outside.Unanswered(network, port); err != nil {
				t.Error(err)
			}
		}
		if err := n.a.Unanswered(network, at(b, 83)); err != nil {
			t.Error(err)
		}
	})
}

// A node may have no address that its pods' answers come back to, but those that clients ask for.
func TestNodeWithoutAddress(t *testing.T) {
	n := newNode(t)
	c := config()
	c.NodeIPs = nil
	table := testnet.Open(t, &n.Space, func() (*Table, error) { return Open(c) })
	n.Run("ip addr add 10.85.0.1/32 dev lo scope host")
	ports := map[Key]*Port{}
	each(func(network, address, _ string, ip func(*testnet.Space) netip.Addr, port func([]Backend, ...Frontend) *Port) {
		ports[Key(network)] = port([]Backend{{Endpoints: []netip.AddrPort{to(ip(n.b))}}},
			Frontend{Addr: netip.MustParseAddr(address), Port: 80}, Frontend{Port: 30080, Masquerade: true})
	})
	n.apply(table, ports)
	each(func(network, address, node string, _ func(*testnet.Space) netip.Addr, _ func([]Backend, ...Frontend) *Port) {
		n.expect(n.b, network, at(address, 80), "b "+address) // itself
		for _, s := range []*testnet.Space{n.a, n.b, n.Outside} {
			n.expect(s, network, at(node, 30080), "b "+node)
		}
	})
	n.expect(n.a, "tcp", "10.85.0.1:30080", "b 10.85.0.1")
	n.expect(&n.Space, "tcp", "10.85.0.1:30080", "b 10.85.0.1")
}

package rules

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
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
	var table *Table
	var err error
	n.Within(func() { table, err = Open(config()) })
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { _ = table.Close() })
	return table
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
	// The kernel tells the node's own sender of a datagram of the drop itself, before the ICMP error.
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

// Until Services are known, connections to them are refused; but not if an earlier process left rules.
func TestRefusedUntilServicesAreKnown(t *testing.T) {
	n := newNode(t)
	table := n.open()
	if err := table.Refuse(); err != nil {
		t.Fatal(err)
	}
	n.refused(n.a, "tcp", at(service4, 80))
	n.refused(n.a, "udp", at(service6, 80))
	n.apply(table, n.twoServices())
	n.expect(n.a, "tcp", at(service4, 80), "b "+n.a.IPv4.String())
	table = n.reopen(table)
	if err := table.Refuse(); err != nil {
		t.Fatal(err)
	}
	n.expect(n.a, "tcp", at(service4, 80), "b "+n.a.IPv4.String())
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
		// Local, where only pods of other nodes are endpoints: those of the node go there all the same.
		none := Backend{Drop: true}
		ports[Key(network+" local none")] = port([]Backend{all, none}, Frontend{Port: 30081, Backend: 1}, Frontend{Addr: b, Port: 81, Backend: 1})
		ports[Key(network+" local")] = port([]Backend{{Endpoints: []netip.AddrPort{to(ip(n.a))}}, all}, Frontend{Port: 30082, Backend: 1}, Frontend{Addr: b, Port: 82, Backend: 1})
		sources := []netip.Prefix{netip.PrefixFrom(ip(n.Outside), ip(n.Outside).BitLen()), netip.PrefixFrom(ip(n.Outside), ip(n.Outside).BitLen()-1)}
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
	var table *Table
	var err error
	n.Within(func() { table, err = Open(c) })
	if err != nil {
		t.Fatal(err)
	}
	defer table.Close()
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

func TestEndpointsChange(t *testing.T) {
	n := newNode(t)
	table := n.open()
	s := netip.MustParseAddr(service4)
	set := func(endpoints ...netip.AddrPort) {
		t.Helper()
		n.apply(table, map[Key]*Port{"x": {Protocol: unix.IPPROTO_TCP, Backends: []Backend{{Endpoints: endpoints}}, Frontends: []Frontend{{Addr: s, Port: 80}}}})
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

// reopen is what a restart does: the table stays, and another process opens it.
func (n *node) reopen(table *Table) *Table {
	n.t.Helper()
	if err := table.Close(); err != nil {
		n.t.Fatal(err)
	}
	return n.open()
}

// echo checks that a connection still carries data both ways.
func echo(conn io.ReadWriter) error {
	if _, err := io.WriteString(conn, "still here"); err != nil {
		return err
	}
	got := make([]byte, len("still here"))
	if _, err := io.ReadFull(conn, got); err != nil || string(got) != "still here" {
		return fmt.Errorf("%q, %w", got, err)
	}
	return nil
}

func (n *node) twoServices() map[Key]*Port {
	ports, _ := twoServices(n.b.IPv4.String())
	return ports
}

// twoServices have ports 80 and 81, and node ports. Endpoints are addresses of pods.
func twoServices(endpoints string) (map[Key]*Port, []netip.AddrPort) {
	var all []netip.AddrPort
	for _, e := range strings.Fields(endpoints) {
		all = append(all, to(netip.MustParseAddr(e)))
	}
	port := func(number uint16, endpoints []netip.AddrPort) *Port {
		return &Port{
			Protocol: unix.IPPROTO_TCP, Backends: []Backend{{Endpoints: endpoints}},
			Frontends: []Frontend{{Addr: netip.MustParseAddr(service4), Port: number}, {Port: 30000 + number, Masquerade: true}},
		}
	}
	return map[Key]*Port{"one": port(80, all[:1]), "two": port(81, all)}, all
}

func TestRestartLosesNothing(t *testing.T) {
	n := newNode(t)
	table := n.open()
	n.apply(table, n.twoServices())
	conn, err := n.a.Dial("tcp", at(service4, 80))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.ReadFull(conn, make([]byte, len("b 10.244.0.2\n"))); err != nil {
		t.Fatal(err)
	}
	if err := table.Close(); err != nil {
		t.Fatal(err)
	}
	n.expect(n.a, "tcp", at(service4, 80), "b "+n.a.IPv4.String()) // while no process runs
	if err := echo(conn); err != nil {
		t.Errorf("an established connection, while no process runs: %v", err)
	}
	before := n.Run("nft -a list table inet " + tableName)
	table = n.open()
	want := n.twoServices()
	delete(want, "two") // deleted meanwhile
	n.apply(table, want)
	n.refused(n.a, "tcp", at(service4, 81))
	n.expect(n.a, "tcp", at(service4, 80), "b "+n.a.IPv4.String())
	if err := echo(conn); err != nil {
		t.Errorf("an established connection, after the restart: %v", err)
	}
	if !strings.Contains(before, "10.96.0.10 . tcp . 81") {
		t.Errorf("the test shows nothing, as this was before:\n%s", before)
	}
	if out := n.Run("nft list table inet " + tableName); strings.Contains(out, ". 81 :") || strings.Contains(out, "30081") {
		t.Errorf("a Service that is gone is left:\n%s", out)
	}
	n.Within(func() { err = Remove(tableName) })
	if out := n.Run("nft list tables"); err != nil || out != "" {
		t.Errorf("%v, left are:\n%s", err, out)
	}
}

// Whatever others do to the table, one Repair makes it what it was.
func TestChangesByOthersAreRepaired(t *testing.T) {
	n := newNode(t)
	table := n.open()
	sticky := n.twoServices()
	sticky["one"].Backends = []Backend{{Endpoints: []netip.AddrPort{to(n.a.IPv4), to(n.b.IPv4)}, Affinity: time.Hour}}
	n.apply(table, sticky)
	select {
	case <-table.Changed():
		t.Error("the table's own transactions count as someone else's")
	default:
	}
	listed := func() string { return n.Run("nft -nn list ruleset") }
	want := sortedLines(listed())
	for _, change := range []string{
		"flush ruleset",
		"delete table inet " + tableName,
		"flush map inet " + tableName + " svc4",
		"delete element inet " + tableName + " ep4 { 0x1000 . 0x0 }",
		"flush chain inet " + tableName + " services",
		"add rule inet " + tableName + " prerouting drop",
		"add element inet " + tableName + " svc4 { 10.96.0.99 . tcp . 80 : 0x1001 }",
		"add chain inet " + tableName + " other",
		"add set inet " + tableName + " other { type ipv4_addr; }",
		"flush chain inet " + tableName + " postrouting",
		"flush map inet " + tableName + " kinds4",
	} {
		began := time.Now()
		n.Run("nft " + change)
		select {
		case <-table.Changed():
		case <-time.After(testnet.Patience):
			t.Fatalf("%s: nothing was noticed", change)
		}
		if got := sortedLines(listed()); got == want {
			t.Errorf("%s: nothing changed, so the test shows nothing", change)
		}
		if err := table.Repair(t.Context()); err != nil {
			t.Fatalf("%s: %v", change, err)
		}
		if took := time.Since(began); took > time.Second {
			t.Errorf("%s: repaired after %v", change, took)
		}
		if got := sortedLines(listed()); got != want {
			t.Errorf("%s: not repaired:\n%s\nwant:\n%s", change, got, want)
		}
		n.expect(n.a, "tcp", at(service4, 81), "b "+n.a.IPv4.String())
	}
	n.Run("nft add table inet another")
	n.Run("nft add table ip " + tableName)
	n.Run("nft flush map inet " + tableName + " svc4")
	<-table.Changed()
	select {
	case <-table.Changed():
		t.Error("changes of other tables count, too")
	default:
	}
	_ = table.Repair(t.Context())
}

// sortedLines makes listings comparable: the order of elements varies.
func sortedLines(text string) string {
	words := strings.FieldsFunc(text, func(r rune) bool { return r == '\n' || r == ',' || r == '{' || r == '}' })
	var kept []string
	for _, w := range words {
		if w = strings.TrimSpace(w); w != "" && !strings.HasPrefix(w, "elements") {
			kept = append(kept, w)
		}
	}
	slices.Sort(kept)
	return strings.Join(kept, "\n")
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
		return map[Key]*Port{"x": {Protocol: unix.IPPROTO_TCP, Backends: []Backend{{Endpoints: all}}, Frontends: []Frontend{{Addr: netip.MustParseAddr(service4), Port: 80}}}}
	}
	n.apply(table, port(endpoints))
	if got := strings.Count(n.Run("nft list map inet "+tableName+" ep4"), "10.245."); got != MaxEndpoints-1 {
		t.Errorf("%d endpoints in the kernel", got)
	}
	n.apply(table, port(endpoints[:1]))
	n.expect(n.a, "tcp", at(service4, 80), "b "+n.a.IPv4.String())
}

package rules

import (
	"fmt"
	"maps"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/cluster/proxy/testnet"
)

const tableName = "coracle-policy-test"

const (
	tcp, udp, sctp = byte(unix.IPPROTO_TCP), byte(unix.IPPROTO_UDP), byte(unix.IPPROTO_SCTP)
)

// node is a node with three pods. Its pods have these idents, unless a test says otherwise.
type node struct {
	*testnet.Node
	t       *testing.T
	a, b, c *testnet.Space
}

const (
	identA = iota + 1
	identB
	identC
)

func newNode(t *testing.T) *node {
	n := &node{Node: testnet.New(t), t: t}
	n.a, n.b, n.c = n.Pod("a"), n.Pod("b"), n.Pod("c")
	return n
}

func config() Config {
	return Config{Name: tableName, PodRanges: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/24"), netip.MustParsePrefix("fd00:244::/64")}}
}

func (n *node) openWith(c Config) *Table {
	n.t.Helper()
	return testnet.Open(n.t, &n.Space, func() (*Table, error) { return Open(c) })
}

func (n *node) open() *Table {
	n.t.Helper()
	return n.openWith(config())
}

// apply and repair run in the node's network namespace, as the table may open a socket again.
func (n *node) apply(table *Table, change Change) {
	n.t.Helper()
	var err error
	n.Within(func() { err = table.Apply(n.t.Context(), change) })
	if err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) repair(table *Table) {
	n.t.Helper()
	var err error
	n.Within(func() { _, err = table.Repair(n.t.Context()) })
	if err != nil {
		n.t.Fatal(err)
	}
}

// pods are the pods a, b and c with their classes, and their idents.
func (n *node) pods(a, b, c Pod) Change {
	change := Change{Idents: map[netip.Addr]uint32{}, Pods: map[netip.Addr]*Pod{}}
	for i, s := range []*testnet.Space{n.a, n.b, n.c} {
		pod := [...]Pod{a, b, c}[i]
		for _, address := range []netip.Addr{s.IPv4, s.IPv6} {
			change.Idents[address], change.Pods[address] = uint32(identA+i), &pod
		}
	}
	return change
}

// with adds classes of a direction, numbered from 1.
func (c Change) with(d Direction, classes ...Class) Change {
	c.Classes[d] = map[uint32]*Class{}
	for i := range classes {
		c.Classes[d][uint32(i+1)] = &classes[i]
	}
	return c
}

func port(protocol byte, number uint16) PortRange { return PortRange{protocol, number, number} }

// to are packets from one space to another, in both families.
func to(from, s *testnet.Space, protocol byte, port uint16) []packet {
	six := protocol
	if protocol == unix.IPPROTO_ICMP {
		six = unix.IPPROTO_ICMPV6
	}
	return []packet{
		{from: from, protocol: protocol, source: from.IPv4, destination: s.IPv4, port: port},
		{from: from, protocol: six, source: from.IPv6, destination: s.IPv6, port: port},
	}
}

func join(parts ...[]packet) (all []packet) {
	for _, p := range parts {
		all = append(all, p...)
	}
	return all
}

func block(first, last string, ports PortRange) Block {
	return Block{netip.MustParseAddr(first), netip.MustParseAddr(last), ports}
}

// What rules let pass. Without rules everything does, as each case checks first.
func TestPackets(t *testing.T) {
	n := newNode(t)
	o := newObserver(t, n.Node)
	a, b, c, outside := n.a, n.b, n.c, n.Outside
	ping := byte(unix.IPPROTO_ICMP)
	for _, address := range []string{"203.0.113.5/32", "203.0.113.9/32", "2001:db8:7::5/128", "2001:db8:7::9/128"} {
		outside.Run("ip addr add " + address + " dev lo")
	}
	// far is between an address outside and a pod.
	far := func(into bool, s *testnet.Space, protocol byte, port uint16, addresses ...string) (all []packet) {
		for _, text := range addresses {
			address, own := netip.MustParseAddr(text), s.IPv4
			if address.Is6() {
				own = s.IPv6
			}
			if into {
				all = append(all, packet{from: outside, protocol: protocol, source: address, destination: own, port: port})
			} else {
				all = append(all, packet{from: s, protocol: protocol, source: own, destination: address, port: port})
			}
		}
		return all
	}
	isolated := Pod{Ingress: 1, Egress: 1}
	for _, test := range []struct {
		name       string
		change     Change
		pass, drop []packet
	}{
		{
			"no pod isolated", n.pods(Pod{}, Pod{}, Pod{}),
			join(to(a, b, tcp, 80), to(b, a, udp, 80), to(a, b, ping, 0), to(outside, a, tcp, 80), to(a, outside, sctp, 80)), nil,
		},
		{
			"isolated from all", n.pods(isolated, Pod{}, Pod{}).with(Ingress, Class{}).with(Egress, Class{}),
			join(to(b, c, tcp, 80), to(outside, c, tcp, 80)),
			join(to(a, b, tcp, 80), to(b, a, tcp, 80), to(a, b, udp, 80), to(b, a, sctp, 80), to(a, outside, ping, 0), to(outside, a, ping, 0)),
		},
		{
			"ingress by ident and port", n.pods(Pod{}, Pod{Ingress: 1}, Pod{}).with(Ingress,
				Class{Peers: []Peer{{identA, port(tcp, 80)}, {identC, port(udp, 53)}}}),
			join(to(a, b, tcp, 80), to(c, b, udp, 53), to(b, a, tcp, 80), to(b, c, udp, 9), to(b, a, ping, 0)),
			join(to(a, b, tcp, 81), to(a, b, udp, 80), to(a, b, sctp, 80), to(a, b, ping, 0), to(c, b, tcp, 80), to(c, b, udp, 54),
				to(outside, b, tcp, 80)),
		},
		{
			"egress by ident and port", n.pods(Pod{Egress: 1}, Pod{}, Pod{}).with(Egress, Class{Peers: []Peer{{identB, port(sctp, 80)}}}),
			join(to(a, b, sctp, 80), to(b, a, tcp, 1), to(c, a, udp, 1), to(outside, a, tcp, 80)),
			join(to(a, b, tcp, 80), to(a, b, sctp, 81), to(a, c, sctp, 80), to(a, outside, sctp, 80), to(a, b, ping, 0)),
		},
		{
			"egress and ingress have to allow it", n.pods(Pod{Egress: 1}, Pod{Ingress: 1}, Pod{}).
				with(Egress, Class{Peers: []Peer{{identB, PortRange{tcp, 80, 90}}}}).with(Ingress,
				Class{Peers: []Peer{{identA, PortRange{tcp, 85, 95}}}}),
			join(to(a, b, tcp, 85), to(a, b, tcp, 90)),
			join(to(a, b, tcp, 80), to(a, b, tcp, 84), to(a, b, tcp, 91), to(a, b, tcp, 95)),
		},
		{
			"two classes, each its own", n.pods(Pod{}, Pod{Ingress: 1}, Pod{Ingress: 2}).
				with(Ingress, Class{Peers: []Peer{{identA, port(tcp, 80)}}},
					Class{Peers: []Peer{{identA, PortRange{}}}, Blocks: []Block{block("0.0.0.0", "255.255.255.255", port(tcp, 7))}}),
			join(to(a, b, tcp, 80), to(a, c, tcp, 81), to(a, c, ping, 0), far(true, c, tcp, 7, "203.0.113.5")),
			join(to(a, b, tcp, 81), to(a, b, ping, 0), to(b, c, tcp, 80), far(true, b, tcp, 7, "203.0.113.5")),
		},
		{
			"all protocols", n.pods(Pod{Egress: 1}, Pod{}, Pod{}).with(Egress, Class{Peers: []Peer{{identB, PortRange{}}}}),
			join(to(a, b, tcp, 1), to(a, b, udp, 65535), to(a, b, sctp, 9), to(a, b, ping, 0)),
			join(to(a, c, tcp, 1), to(a, c, ping, 0), to(a, outside, ping, 0)),
		},
		{
			"a protocol without ports", n.pods(Pod{}, Pod{Ingress: 1}, Pod{}).with(Ingress,
				Class{Peers: []Peer{{identA, PortRange{udp, 0, 65535}}}}),
			join(to(a, b, udp, 1), to(a, b, udp, 65535)),
			join(to(a, b, tcp, 1), to(a, b, ping, 0), to(a, b, sctp, 1), to(c, b, udp, 1)),
		},
		{
			"ranges that overlap and touch", n.pods(Pod{}, Pod{Ingress: 1}, Pod{}).
				with(Ingress, Class{Peers: []Peer{
					{identA, PortRange{tcp, 100, 200}},
					{identA, PortRange{tcp, 150, 300}},
					{identA, PortRange{tcp, 301, 310}},
					{identA, port(tcp, 120)},
					{identA, port(tcp, 400)},
					{identC, PortRange{tcp, 65000, 65535}},
				}}),
			join(to(a, b, tcp, 100), to(a, b, tcp, 199), to(a, b, tcp, 310), to(a, b, tcp, 400), to(c, b, tcp, 65535), to(c, b, tcp, 65000)),
			join(to(a, b, tcp, 99), to(a, b, tcp, 311), to(a, b, udp, 150), to(c, b, tcp, 64999), to(c, b, tcp, 150)),
		},
		{
			"a block with a hole", n.pods(Pod{Ingress: 1}, Pod{Egress: 1}, Pod{}).
				with(Ingress, Class{Blocks: []Block{
					block("203.0.113.0", "203.0.113.8", PortRange{}), block("203.0.113.10", "203.0.113.255", PortRange{}),
					block("2001:db8:7::", "2001:db8:7::8", PortRange{}), block("2001:db8:7::a", "2001:db8:7:ffff:ffff:ffff:ffff:ffff", PortRange{}),
				}}).
				with(Egress, Class{Blocks: []Block{
					block("203.0.113.9", "203.0.113.9", port(tcp, 80)),
					block("2001:db8:7::9", "2001:db8:7::9", PortRange{udp, 5, 6}),
				}}),
			join(
				far(true, a, tcp, 9, "203.0.113.5", "2001:db8:7::5"), far(true, a, unix.IPPROTO_ICMP, 0, "203.0.113.5"),
				far(true, a, unix.IPPROTO_ICMPV6, 0, "2001:db8:7::5"),
				far(false, b, tcp, 80, "203.0.113.9"), far(false, b, udp, 6, "2001:db8:7::9"),
			),
			join(
				far(true, a, tcp, 9, "203.0.113.9", "2001:db8:7::9", testnet.Outside4, testnet.Outside6), to(b, a, tcp, 9),
				far(false, b, tcp, 80, "203.0.113.5", "2001:db8:7::9"), far(false, b, udp, 6, "2001:db8:7::5", "203.0.113.9"),
				far(false, b, udp, 7, "2001:db8:7::9"),
			),
		},
		{
			"everything in blocks, also pods", n.pods(Pod{Egress: 1}, Pod{}, Pod{}).
				with(Egress, Class{Blocks: []Block{
					block("0.0.0.0", "255.255.255.255", PortRange{}),
					block("::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", port(tcp, 80)),
				}}),
			join(to(a, b, ping, 0)[:1], to(a, b, tcp, 80), far(false, a, tcp, 80, "203.0.113.5", "2001:db8:7::5"), to(a, outside, udp, 1)[:1]),
			join(to(a, b, ping, 0)[1:], to(a, b, tcp, 81)[1:], far(false, a, udp, 80, "2001:db8:7::5")),
		},
		{
			"overlapping blocks", n.pods(Pod{Ingress: 1}, Pod{}, Pod{}).
				with(Ingress, Class{Blocks: []Block{
					block("203.0.0.0", "203.0.255.255", port(tcp, 80)), block("203.0.113.0", "203.0.113.255", PortRange{tcp, 70, 90}),
					block("203.0.113.5", "203.0.113.5", port(tcp, 443)), block("203.0.113.9", "203.0.113.9", PortRange{}),
					block("0.0.0.0", "203.0.113.5", port(udp, 1)),
				}}),
			join(far(true, a, tcp, 80, "203.0.113.5"), far(true, a, tcp, 90, "203.0.113.5"), far(true, a, tcp, 443, "203.0.113.5", "203.0.113.9"),
				far(true, a, udp, 1, "203.0.113.5")),
			join(far(true, a, tcp, 91, "203.0.113.5"), far(true, a, udp, 2, "203.0.113.5"), far(true, a, tcp, 80, testnet.Outside4)),
		},
		{
			"a class that no one named allows nothing", n.pods(Pod{Ingress: 9}, Pod{}, Pod{}),
			to(a, b, tcp, 80), to(b, a, tcp, 80),
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			all := join(test.pass, test.drop)
			for i, passed := range o.verdicts(t, all) {
				if !passed {
					t.Errorf("without rules, %s does not pass", all[i])
				}
			}
			var table *Table
			var err error
			n.Within(func() {
				if table, err = Open(config()); err == nil {
					err = table.Apply(t.Context(), test.change)
				}
			})
			if err != nil {
				t.Fatal(err)
			}
			defer table.Close()
			for i, passed := range o.verdicts(t, all) {
				want := i < len(test.pass)
				if passed != want {
					t.Errorf("%s passes: %v, want %v", all[i], passed, want)
				}
				if got := table.Allowed(all[i].connection()); got != want {
					t.Errorf("%s is allowed: %v, want %v", all[i], got, want)
				}
			}
			n.Within(func() { err = Remove(tableName) })
			if out := n.Run("nft list tables"); err != nil || out != "table inet observer\n" {
				t.Errorf("%v, left are:\n%s", err, out)
			}
		})
	}
}

// A pod that no change has named neither sends nor receives, from the table's first moment.
func TestUnknownPodIsDropped(t *testing.T) {
	const group = 77
	for _, test := range []struct {
		name   string
		config Config
		group  uint32
	}{
		{"by address", config(), 0},
		{"by link", Config{Name: tableName}, group},
	} {
		t.Run(test.name, func(t *testing.T) {
			n := newNode(t)
			o := newObserver(t, n.Node)
			for i := range 3 {
				n.Run(fmt.Sprintf("ip link set pod%d group %d", i+1, group))
			}
			change := n.pods(Pod{}, Pod{}, Pod{})
			change.LinkGroup = &test.group
			for _, a := range []netip.Addr{n.c.IPv4, n.c.IPv6} {
				delete(change.Pods, a)
			}
			known := join(to(n.a, n.b, tcp, 80), to(n.Outside, n.a, tcp, 80), to(n.a, n.Outside, udp, 80))
			all := join(known, to(n.a, n.c, tcp, 80), to(n.c, n.a, udp, 80), to(n.Outside, n.c, tcp, 80), to(n.c, n.Outside, unix.IPPROTO_ICMP, 0))
			for i, passed := range o.verdicts(t, all) {
				if !passed {
					t.Errorf("without rules, %s does not pass", all[i])
				}
			}
			table := n.openWith(test.config)
			n.apply(table, change)
			for i, passed := range o.verdicts(t, all) {
				if passed != (i < len(known)) {
					t.Errorf("%s passes: %v", all[i], passed)
				}
			}
			n.apply(table, Change{Pods: map[netip.Addr]*Pod{n.c.IPv4: {}, n.c.IPv6: {}}})
			for i, passed := range o.verdicts(t, all) {
				if !passed {
					t.Errorf("when the pod is known, %s does not pass", all[i])
				}
			}
		})
	}
}

// The rules use a packet's priority. What passes has the one that it had.
func TestPriorityIsRestored(t *testing.T) {
	n := newNode(t)
	o := newObserver(t, n.Node)
	load(t, n.Node, `table inet after {
		set got { type classid . inet_service; flags dynamic; size 1000; }
		chain post { type filter hook postrouting priority 0;
			meta l4proto udp add @got { meta priority . th dport }
		}
	}`)
	var packets []packet
	for i, tos := range []byte{0, 0x08, 0x10, 0x18, 0x1c, 0xb8, 0x02} {
		for _, p := range join(to(n.a, n.b, udp, uint16(100+i)), to(n.b, n.c, udp, uint16(200+i)), to(n.Outside, n.b, udp, uint16(300+i))) {
			p.tos = tos
			packets = append(packets, p)
		}
	}
	listed := func() string {
		o.verdicts(t, packets)
		return testnet.SortedLines(n.Run("nft -nn list set inet after got"))
	}
	want := listed()
	if !strings.Contains(want, "6 . 102") && !strings.Contains(want, ":0006 . 102") {
		t.Fatalf("forwarding gives no priority, so the test shows nothing:\n%s", want)
	}
	n.Run("nft flush set inet after got")
	n.apply(n.open(), n.pods(Pod{}, Pod{Ingress: 1, Egress: 1}, Pod{Ingress: 2}).
		with(Ingress, Class{Blocks: []Block{block("0.0.0.0", "255.255.255.255", PortRange{}), block("::", "ffff::", PortRange{})}},
			Class{Peers: []Peer{{identB, PortRange{}}}}).
		with(Egress, Class{Peers: []Peer{{identC, PortRange{}}}}))
	if got := listed(); got != want {
		t.Errorf("with rules, priorities are\n%s\nwithout\n%s", got, want)
	}
}

// nft lists the table, and understands what it lists. What it loads then is corrected.
func TestListing(t *testing.T) {
	n := newNode(t)
	table := n.open()
	group := uint32(1<<30 + 77)
	want := n.pods(Pod{Ingress: 1}, Pod{Egress: 1}, Pod{Ingress: MaxClass}).
		with(Ingress, Class{
			Peers: []Peer{{identA, port(tcp, 80)}, {identB, PortRange{sctp, 80, 90}}, {MaxIdent, PortRange{}}, {identC, OtherProtocols}},
			Blocks: []Block{
				block("10.0.0.0", "10.0.0.9", PortRange{}), block("fd00::", "fd00::9", PortRange{}),
				block("10.1.0.0", "10.1.0.9", PortRange{udp, 1, 2}),
			},
		}).with(Egress, Class{
		Blocks:  []Block{block("fd00::", "fd00::9", port(tcp, 80)), block("10.2.0.0", "10.2.0.9", OtherProtocols)},
		Decided: []uint32{identB},
	})
	want.LinkGroup = &group
	n.apply(table, want)
	out := n.Run("nft list ruleset")
	for _, part := range []string{
		"chain in_1", "@blocks_out6", "@ident4", "@any_in", "@self6", "10.1.0.0-10.1.0.9", "@links",
		"chain tiers_out_1", "@decided_out", "10.2.0.0-10.2.0.9",
	} {
		if !strings.Contains(out, part) {
			t.Errorf("%q is missing in:\n%s", part, out)
		}
	}
	load(t, n.Node, "flush ruleset\n"+out)
	<-table.Changed()
	n.repair(table)
	again := n.open()
	if got, exists := again.AdoptedLinkGroup(); !exists || got != group {
		t.Errorf("repaired, the group of links is %d, %v", got, exists)
	}
	idents, pods := again.Adopted()
	if !maps.Equal(idents, want.Idents) || !maps.EqualFunc(pods, want.Pods, func(p Pod, w *Pod) bool { return p == *w }) {
		t.Errorf("repaired, there are idents %v and pods %v", idents, pods)
	}
}

package rules

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/cluster/proxy/testnet"
)

// Policies see the endpoint and the true client, also of a Service; and a pod reaches itself
// through one.
func TestServicesAreTranslatedBefore(t *testing.T) {
	n := newNode(t)
	o := newObserver(t, n.Node)
	load(t, n.Node, fmt.Sprintf(`table inet services {
		chain prerouting { type nat hook prerouting priority dstnat;
			ip daddr 10.96.0.2 dnat ip to %s
			ip6 daddr fd00:96::2 dnat ip6 to %s
		}
		chain postrouting { type nat hook postrouting priority srcnat;
			ip daddr %[1]s snat ip to %[3]s
			ip6 daddr %[2]s snat ip6 to %[4]s
		}
	}`, n.b.IPv4, n.b.IPv6, testnet.Node4, testnet.Node6))
	service := &testnet.Space{IPv4: netip.MustParseAddr("10.96.0.2"), IPv6: netip.MustParseAddr("fd00:96::2")}
	pass := join(to(n.a, service, tcp, 80), to(n.b, service, udp, 80), to(n.Outside, service, tcp, 81))
	drop := join(to(n.c, service, tcp, 80), to(n.a, service, udp, 80), to(n.Outside, service, tcp, 80))
	all := join(pass, drop)
	for i, passed := range o.verdicts(t, all) {
		if !passed {
			t.Errorf("without rules, %s does not pass", all[i])
		}
	}
	table := n.open()
	n.apply(table, n.pods(Pod{}, Pod{1, 1}, Pod{}).with(Egress, Class{}).with(Ingress, Class{
		Peers: []Peer{{identA, port(tcp, 80)}},
		Blocks: []Block{
			{n.Outside.IPv4, n.Outside.IPv4, port(tcp, 81)},
			{n.Outside.IPv6, n.Outside.IPv6, port(tcp, 81)},
			{n.Node.IPv4, n.Node.IPv4, PortRange{}},
			{n.Node.IPv6, n.Node.IPv6, PortRange{}}, // not what comes as the node later
		},
	}))
	for i, passed := range o.verdicts(t, all) {
		if passed != (i < len(pass)) {
			t.Errorf("%s passes: %v", all[i], passed)
		}
	}
	for _, a := range []netip.Addr{n.b.IPv4, n.b.IPv6} {
		self := Connection{Protocol: udp, Source: netip.AddrPortFrom(a, 1), Destination: netip.AddrPortFrom(a, 80)}
		if !table.Allowed(self) {
			t.Errorf("%s may not talk with itself", a)
		}
	}
}

// pair is a connection from one pod to another, with both its ends.
type pair struct{ client, server net.Conn }

func connect(t *testing.T, from, to *testnet.Space, address netip.Addr, port int) pair {
	t.Helper()
	var l net.Listener
	var err error
	at := netip.AddrPortFrom(address, uint16(port)).String()
	to.Within(func() { l, err = net.Listen("tcp", at) })
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var p pair
	if p.client, err = from.Dial("tcp", at); err != nil {
		t.Fatal(err)
	}
	if p.server, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = p.client.Close(), p.server.Close() })
	return p
}

// talk opens two sockets that send datagrams to each other; the first sends first.
func talk(t *testing.T, from, to *testnet.Space, address netip.Addr, port int) pair {
	t.Helper()
	var p pair
	var err error
	at := netip.AddrPortFrom(address, uint16(port)).String()
	var listener net.PacketConn
	to.Within(func() { listener, err = net.ListenPacket("udp", at) })
	if err != nil {
		t.Fatal(err)
	}
	if p.client, err = from.Dial("udp", at); err != nil {
		t.Fatal(err)
	}
	p.server = replies{listener.(*net.UDPConn), p.client.LocalAddr()}
	t.Cleanup(func() { _, _ = p.client.Close(), listener.Close() })
	return p
}

// replies sends to one address.
type replies struct {
	*net.UDPConn
	to net.Addr
}

func (r replies) Write(b []byte) (int, error) { return r.WriteTo(b, r.to) }

// carries reports whether what one end sends gets to the other.
func carries(from, to net.Conn, patience time.Duration) (bool, error) {
	if _, err := io.WriteString(from, "word"); err != nil {
		return false, err
	}
	_ = to.SetReadDeadline(time.Now().Add(patience))
	got := make([]byte, 4)
	if _, err := io.ReadFull(to, got); errors.Is(err, os.ErrDeadlineExceeded) {
		return false, nil
	} else if err != nil || string(got) != "word" {
		return false, fmt.Errorf("%q, %w", got, err)
	}
	return true, nil
}

func (p pair) expect(t *testing.T, what string, forth, back bool) {
	t.Helper()
	for _, way := range []struct {
		name     string
		from, to net.Conn
		want     bool
	}{{"forth", p.client, p.server, forth}, {"back", p.server, p.client, back}} {
		patience := testnet.Patience
		if !way.want {
			patience = testnet.Silence
		}
		if got, err := carries(way.from, way.to, patience); err != nil || got != way.want {
			t.Errorf("%s, %s: carried %v, %v", what, way.name, got, err)
		}
	}
}

// A connection that is forbidden later is cut in both directions, and no other is.
func TestForbiddenConnectionsAreCut(t *testing.T) {
	for _, family := range families {
		t.Run("IPv"+family.Name, func(t *testing.T) {
			n := newNode(t)
			ip := func(s *testnet.Space) netip.Addr { return [2]netip.Addr{s.IPv4, s.IPv6}[family.Index] }
			table := n.open()
			allow := func(idents ...uint32) Class {
				var c Class
				for _, i := range idents {
					c.Peers = append(c.Peers, Peer{i, port(tcp, 80)}, Peer{i, port(udp, 53)})
				}
				return c
			}
			// B sends nothing of its own accord, so that its datagrams are replies.
			change := n.pods(Pod{}, Pod{1, 1}, Pod{}).with(Ingress, allow(identA, identC)).with(Egress, Class{})
			n.apply(table, change)
			stays, cut := connect(t, n.a, n.b, ip(n.b), 80), connect(t, n.c, n.b, ip(n.b), 80)
			udpCut := talk(t, n.c, n.b, ip(n.b), 53)
			other := connect(t, n.c, n.a, ip(n.a), 80) // not B's
			node := connect(t, n.b, &n.Space, ip(&n.Space), 99)
			for _, p := range []pair{stays, cut, other, node} {
				p.expect(t, "at first", true, true)
			}
			udpCut.expect(t, "UDP at first", true, true)

			change = Change{Classes: [2]map[uint32]*Class{{1: new(Class)}}}
			*change.Classes[Ingress][1] = allow(identA)
			n.apply(table, change)
			cut.expect(t, "when it is forbidden", false, true) // a reply still passes
			udpCut.expect(t, "UDP when it is forbidden", false, true)

			asked := map[Connection]bool{}
			cutter := n.cutter(table)
			allowed := cutter.allowed
			cutter.allowed = func(c Connection) bool {
				asked[c] = allowed(c)
				return asked[c]
			}
			count, err := cutter.Cut(t.Context(), map[netip.Addr]bool{ip(n.b): true}, nil)
			if err != nil || count != 2 {
				t.Errorf("cut %d connections, %v", count, err)
			}
			of := func(c net.Conn, protocol byte) Connection {
				return Connection{protocol, netip.MustParseAddrPort(c.LocalAddr().String()), netip.MustParseAddrPort(c.RemoteAddr().String())}
			}
			want := map[Connection]bool{of(stays.client, tcp): true, of(cut.client, tcp): false, of(udpCut.client, udp): false}
			if !maps.Equal(asked, want) {
				t.Errorf("asked about %v, want %v", asked, want)
			}
			cut.expect(t, "when it is cut", false, false)
			udpCut.expect(t, "UDP when it is cut", false, false)
			for _, p := range []pair{stays, other, node} {
				p.expect(t, "another", true, true)
			}
		})
	}
}

// SCTP's ports decide, too.
func TestCutKnowsPortsOfSCTP(t *testing.T) {
	n := newNode(t)
	o := newObserver(t, n.Node)
	table := n.open()
	n.apply(table, n.pods(Pod{}, Pod{}, Pod{}))
	o.verdicts(t, join(to(n.a, n.b, sctp, 80), to(n.a, n.b, sctp, 81), to(n.a, n.b, unix.IPPROTO_ICMP, 0)))
	var asked []string
	var err error
	count := 0
	cut := func() {
		asked = nil
		cutter := n.cutter(table)
		cutter.allowed = func(c Connection) bool {
			asked = append(asked, fmt.Sprintf("%d %s", c.Protocol, c.Destination))
			return c.Destination.Port() != 81
		}
		count, err = cutter.Cut(t.Context(), map[netip.Addr]bool{n.b.IPv4: true, n.b.IPv6: true}, nil)
		slices.Sort(asked)
	}
	cut()
	v4, v6 := n.b.IPv4.String(), "["+n.b.IPv6.String()+"]"
	want := []string{"1 " + v4 + ":0", "132 " + v4 + ":80", "132 " + v4 + ":81", "132 " + v6 + ":80", "132 " + v6 + ":81", "58 " + v6 + ":0"}
	if err != nil || count != 2 || !slices.Equal(asked, want) {
		t.Errorf("cut %d, %v, asked about %q, want %q", count, err, asked, want)
	}
	cut()
	if want = slices.DeleteFunc(want, func(s string) bool {
		return strings.HasSuffix(s, ":81")
	}); err != nil || count != 0 || !slices.Equal(asked, want) {
		t.Errorf("again: cut %d, %v, asked about %q, want %q", count, err, asked, want)
	}
}

// A packet in the middle of a connection that the kernel does not know opens none, where a pod is
// isolated.
func TestNoConnectionBeginsInTheMiddle(t *testing.T) {
	const ack = 0x10
	n := newNode(t)
	o := newObserver(t, n.Node)
	middle := func(packets []packet) []packet {
		for i := range packets {
			packets[i].flags = ack
		}
		return packets
	}
	drop := middle(join(to(n.a, n.b, tcp, 80), to(n.b, n.a, tcp, 80), to(n.c, n.b, tcp, 80), to(n.b, n.Outside, tcp, 80)))
	pass := middle(join(to(n.a, n.c, tcp, 80), to(n.c, n.Outside, tcp, 80)))
	all := join(drop, pass)
	for i, passed := range o.verdicts(t, all) {
		if !passed {
			t.Errorf("without rules, %s does not pass", all[i])
		}
	}
	n.apply(n.open(), n.pods(Pod{}, Pod{Ingress: 1}, Pod{}).with(Ingress, Class{Peers: []Peer{{identA, PortRange{}}}}))
	for i, passed := range o.verdicts(t, all) {
		if passed != (i >= len(drop)) {
			t.Errorf("%s passes: %v", all[i], passed)
		}
	}
}

// A pod and its node always reach each other.
func TestPodAndItsNode(t *testing.T) {
	n := newNode(t)
	for _, s := range []*testnet.Space{&n.Space, n.a, n.b} {
		s.Serve("tcp", 8080)
		s.Serve("udp", 8080)
	}
	at := func(a netip.Addr) string { return netip.AddrPortFrom(a, 8080).String() }
	n.apply(n.open(), n.pods(Pod{1, 1}, Pod{1, 1}, Pod{}).with(Ingress, Class{}).with(Egress, Class{}))
	for _, network := range []string{"tcp", "udp"} {
		for _, way := range []struct {
			from *testnet.Space
			to   netip.Addr
			want string
		}{
			{n.a, n.Node.IPv4, "node " + n.a.IPv4.String()},
			{n.a, n.Node.IPv6, "node " + n.a.IPv6.String()},
			{&n.Space, n.a.IPv4, "a " + testnet.Node4},
			{&n.Space, n.a.IPv6, "a " + testnet.Node6},
			{n.a, n.a.IPv4, "a " + n.a.IPv4.String()},
			{n.a, n.a.IPv6, "a " + n.a.IPv6.String()},
		} {
			if got, err := way.from.Ask(network, at(way.to)); err != nil || got != way.want {
				t.Errorf("%s to %s: %q, %v", network, way.to, got, err)
			}
		}
	}
	if err := n.a.Unanswered("tcp", at(n.b.IPv4)); err != nil {
		t.Error(err)
	}
	n.Within(func() { _ = Remove(tableName) })
	if got, err := n.a.Ask("tcp", at(n.b.IPv4)); err != nil || got != "b "+n.a.IPv4.String() {
		t.Errorf("without rules: %q, %v", got, err)
	}
}

// An ICMP error about a connection that is allowed passes, to its client as well as to its server.
func TestErrorsPass(t *testing.T) {
	n := newNode(t)
	const refusal4, refusal6 = 3, 1 // RFC 792 and RFC 4443, section 3.1
	refused := func(when string) {
		t.Helper()
		for i, client := range []netip.Addr{n.Outside.IPv4, n.Outside.IPv6} {
			own := [2]netip.Addr{n.a.IPv4, n.a.IPv6}[i]
			if got, err := n.a.Ask("udp", netip.AddrPortFrom(client, 80).String()); !errors.Is(err, unix.ECONNREFUSED) {
				t.Errorf("%s: asked %s: %q, %v", when, client, got, err)
			}
			errors := n.a.ListenIP([2]string{"ip4:1", "ip6:58"}[i])
			p := talk(t, n.Outside, n.a, own, 53)
			if carried, err := carries(p.client, p.server, testnet.Patience); !carried {
				t.Errorf("%s: to %s: %v", when, own, err)
			}
			_ = p.client.Close()
			if _, err := io.WriteString(p.server, "late"); err != nil {
				t.Error(err)
			}
			_ = errors.SetReadDeadline(time.Now().Add(testnet.Patience))
			for got := make([]byte, 100); got[0] != refusal4 && got[0] != refusal6; {
				if _, _, err := errors.ReadFrom(got); err != nil {
					t.Errorf("%s: the server at %s is not told: %v", when, own, err)
					break
				}
			}
			_ = p.server.Close()
		}
	}
	refused("without rules")
	blocks := func(p PortRange) []Block {
		return []Block{{n.Outside.IPv4, n.Outside.IPv4, p}, {n.Outside.IPv6, n.Outside.IPv6, p}}
	}
	n.apply(n.open(), n.pods(Pod{1, 1}, Pod{}, Pod{}).with(Ingress, Class{Blocks: blocks(port(udp, 53))}).with(Egress,
		Class{Blocks: blocks(port(udp, 80))}))
	refused("with rules")
}

package rules

import (
	"context"
	"errors"
	"net/netip"
	"testing"

	"github.com/coracle-project/coracle/cluster/nftable"
)

func (n *node) cutter(table *Table) *Cutter {
	n.t.Helper()
	var c *Cutter
	var err error
	n.Within(func() { c, err = table.Cutter() })
	if err != nil {
		n.t.Fatal(err)
	}
	return c
}

// cut ends connections, and returns how many.
func (n *node) cut(table *Table, pods, gone map[netip.Addr]bool) int {
	n.t.Helper()
	count, err := n.cutter(table).Cut(n.t.Context(), pods, gone)
	if err != nil {
		n.t.Error(err)
	}
	return count
}

// A connection is decided when it would be cut, by the rules of that moment: one that was forbidden
// and is allowed again goes on.
func TestConnectionThatIsAllowedAgainStays(t *testing.T) {
	n := newNode(t)
	table := n.open()
	ingress := func(idents ...uint32) Change {
		c := Class{}
		for _, i := range idents {
			c.Peers = append(c.Peers, Peer{i, port(tcp, 80)})
		}
		return Change{}.with(Ingress, c)
	}
	change := n.pods(Pod{}, Pod{Ingress: 1}, Pod{})
	change.Classes = ingress(identA, identC).Classes
	n.apply(table, change)
	stays, cut := connect(t, n.a, n.b, n.b.IPv4, 80), connect(t, n.c, n.b, n.b.IPv4, 80)
	n.apply(table, ingress())
	again := ingress(identA)

	c := n.cutter(table)
	table.mu.Lock() // so that nothing is decided yet
	counted := make(chan int, 1)
	go func() {
		count, err := c.Cut(t.Context(), map[netip.Addr]bool{n.b.IPv4: true}, nil)
		if err != nil {
			t.Error(err)
		}
		counted <- count
	}()
	if err := table.state.apply(&nftable.Batch{}, again); err != nil {
		t.Error(err)
	}
	table.mu.Unlock()
	if count := <-counted; count != 1 {
		t.Errorf("cut %d connections, want 1", count)
	}
	n.apply(table, ingress()) // so that the kernel's rules differ from what is wanted now
	n.apply(table, again)
	stays.expect(t, "allowed again", true, true)
	cut.expect(t, "still forbidden", false, false)
}

// All connections of an address that is gone are cut, except those with the node.
func TestConnectionsOfAddressesThatAreGone(t *testing.T) {
	n := newNode(t)
	table := n.open()
	n.apply(table, n.pods(Pod{}, Pod{}, Pod{}))
	in, out := connect(t, n.a, n.b, n.b.IPv6, 80), connect(t, n.b, n.Outside, n.Outside.IPv6, 80)
	other, node := connect(t, n.a, n.c, n.c.IPv6, 80), connect(t, n.b, &n.Space, n.Node.IPv6, 99)
	all := []pair{in, out, other, node}
	for _, p := range all {
		p.expect(t, "at first", true, true)
	}
	if count := n.cut(table, map[netip.Addr]bool{n.b.IPv6: true}, nil); count != 0 {
		t.Errorf("%d connections that are allowed were cut", count)
	}
	n.apply(table, Change{Pods: map[netip.Addr]*Pod{n.b.IPv6: nil}})
	if count := n.cut(table, nil, map[netip.Addr]bool{n.b.IPv6: true}); count != 2 {
		t.Errorf("cut %d connections, want 2", count)
	}
	in.expect(t, "to the address", false, false)
	out.expect(t, "from the address", false, false)
	other.expect(t, "between others", true, true)
	node.expect(t, "with the node", true, true)
}

// A Cut that is not wanted any more ends, and says so.
func TestCutEndsWithItsContext(t *testing.T) {
	n := newNode(t)
	table := n.open()
	n.apply(table, n.pods(Pod{}, Pod{}, Pod{}))
	connect(t, n.a, n.b, n.b.IPv4, 80)
	c := n.cutter(table)
	ctx, cancel := context.WithCancel(t.Context())
	c.allowed = func(Connection) bool { cancel(); return false }
	count, err := c.Cut(ctx, map[netip.Addr]bool{n.b.IPv4: true}, nil)
	if !errors.Is(err, context.Canceled) || count > 1 {
		t.Errorf("cut %d, %v", count, err)
	}
	c = n.cutter(table)
	if count, err = c.Cut(ctx, map[netip.Addr]bool{n.b.IPv4: true}, nil); !errors.Is(err, context.Canceled) || count != 0 {
		t.Errorf("after its end: cut %d, %v", count, err)
	}
}

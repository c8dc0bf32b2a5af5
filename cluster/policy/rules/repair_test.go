package rules

import (
	"maps"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/cluster/proxy/testnet"
)

// sample has something in each map and set.
func (n *node) sample() Change {
	return n.pods(Pod{Ingress: 1}, Pod{Ingress: 2, Egress: 1}, Pod{}).
		with(Ingress, Class{Peers: []Peer{{identB, port(tcp, 80)}, {identC, PortRange{tcp, 80, 90}}, {identA, PortRange{}}}},
			Class{Blocks: []Block{
				block("10.0.0.0", "10.0.0.9", PortRange{}), block("fd00::", "fd00::9", port(udp, 5)),
				block("10.1.0.0", "10.1.0.9", PortRange{udp, 1, 2}),
			}}).
		with(Egress, Class{Peers: []Peer{{identA, PortRange{}}}, Blocks: []Block{block("fd00::", "fd00::9", PortRange{})}})
}

// Whatever others do to the table, one Repair makes it what it was.
func TestChangesByOthersAreRepaired(t *testing.T) {
	n := newNode(t)
	table := n.open()
	n.apply(table, n.sample())
	n.apply(table, Change{Pods: map[netip.Addr]*Pod{netip.MustParseAddr("10.244.0.99"): {Ingress: 2}}})
	own := "inet " + tableName + " "
	testnet.Repairs(t, &n.Space, table, []string{
		"flush ruleset",
		"delete table " + own,
		"flush map " + own + "in4",
		"flush set " + own + "blocks_in4",
		"flush chain " + own + "forward",
		"flush chain " + own + "in_1",
		"insert rule " + own + "forward accept",
		"add element " + own + "in4 { 10.244.0.50 : 0:7 }",
		"add chain " + own + "other",
		"add set " + own + "other { type ipv4_addr; }",
		"chain " + own + "forward { policy drop; }",
		"flush map " + own + "classes_in",
	}, func() {})
}

// Steps from one state to the next leave the same as going there at once.
func TestStepsLeaveNothing(t *testing.T) {
	n := newNode(t)
	table := n.open()
	all := []netip.Addr{n.a.IPv4, n.a.IPv6, n.b.IPv4, n.b.IPv6, n.c.IPv4, n.c.IPv6}
	empty := func() string { return testnet.SortedLines(n.Run("nft -nn list ruleset")) }
	n.apply(table, Change{})
	before := empty()
	n.apply(table, n.sample())
	direct := empty()
	if direct == before {
		t.Fatalf("nothing changed:\n%s", direct)
	}
	other := n.pods(Pod{Egress: 2}, Pod{}, Pod{Ingress: 1}).with(Egress, Class{Peers: []Peer{{identC, port(udp, 1)}}}, Class{})
	other.Classes[Ingress] = map[uint32]*Class{1: {Blocks: []Block{block("10.0.0.5", "10.0.0.20", port(udp, 3))}}, 2: nil}
	n.apply(table, other)
	back := n.sample()
	back.Classes[Egress][2] = nil
	n.apply(table, back)
	if got := empty(); got != direct {
		t.Errorf("back, it is\n%s\nand was\n%s", got, direct)
	}
	gone := Change{Idents: map[netip.Addr]uint32{}, Pods: map[netip.Addr]*Pod{}, Classes: [2]map[uint32]*Class{{1: nil, 2: nil}, {1: nil}}}
	for _, a := range all {
		gone.Idents[a], gone.Pods[a] = 0, nil
	}
	n.apply(table, gone)
	if got := empty(); got != before {
		t.Errorf("left are\n%s\nand were\n%s", got, before)
	}
	select {
	case <-table.Changed():
		t.Error("a change by someone else was seen")
	default:
	}
}

// The kernel (6.18) takes 3.7 s to remove 1,000 ranges one by one, and no table can be changed
// meanwhile.
func TestManyRangesAreRemovedAtOnce(t *testing.T) {
	const limit = time.Second
	n := newNode(t)
	o := newObserver(t, n.Node)
	table := n.open()
	want := n.sample()
	n.apply(table, want)
	listed := func() string { return testnet.SortedLines(n.Run("nft -nn list table inet " + tableName)) }
	before := listed()
	many := Class{Blocks: []Block{{n.a.IPv4, n.a.IPv4, port(tcp, 81)}}}
	for i := range 1000 {
		first := netip.AddrFrom4([4]byte{20, byte(i >> 8), byte(i), 0})
		many.Blocks = append(many.Blocks, Block{first, netip.AddrFrom4([4]byte{20, byte(i >> 8), byte(i), 130}), port(tcp, 443)})
	}
	add := func(table *Table) {
		n.apply(table, Change{Pods: map[netip.Addr]*Pod{n.c.IPv4: {Ingress: 9}}, Classes: [2]map[uint32]*Class{{9: &many}}})
	}
	add(table)
	through := to(n.a, n.c, tcp, 81)[:1]
	if got := o.verdicts(t, through); !got[0] || listed() == before {
		t.Errorf("with many ranges, %s passes: %v", through[0], got[0])
	}
	less := Class{Blocks: many.Blocks[500:]}
	began := cpu(t)
	n.apply(table, Change{Classes: [2]map[uint32]*Class{{9: &less}}})
	if got := o.verdicts(t, through); got[0] {
		t.Errorf("with half of the ranges, %s passes", through[0])
	}
	n.apply(table, Change{Pods: map[netip.Addr]*Pod{n.c.IPv4: {}}, Classes: [2]map[uint32]*Class{{9: nil}}})
	if took := cpu(t) - began; took > limit {
		t.Errorf("removed with %v of a processor", took)
	}
	if got := listed(); got != before {
		t.Errorf("removed, it has %d lines more than before", len(strings.Split(got, "\n"))-len(strings.Split(before, "\n")))
	}
	add(table)
	_ = table.Close()
	table = n.open()
	began = cpu(t)
	n.apply(table, want)
	if took := cpu(t) - began; took > limit {
		t.Errorf("after a restart, removed with %v of a processor", took)
	}
	if got := listed(); got != before {
		t.Errorf("after a restart, it has %d lines more than before", len(strings.Split(got, "\n"))-len(strings.Split(before, "\n")))
	}
}

// cpu is how much of a processor this process has used, with the kernel's work for it. How long it
// waits for one on a busy machine does not count.
func cpu(t *testing.T) time.Duration {
	t.Helper()
	var used unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &used); err != nil {
		t.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// changedElements counts the elements that transactions change from now on.
func changedElements(n *node) func() int {
	var conn *netlink.Conn
	var err error
	n.Within(func() { conn, err = netlink.Dial(unix.NETLINK_NETFILTER, nil) })
	if err == nil {
		err = conn.JoinGroup(unix.NFNLGRP_NFTABLES)
	}
	if err != nil {
		n.t.Fatal(err)
	}
	return func() (count int) {
		defer conn.Close()
		n.Run("nft add table ip last") // the kernel tells of it after the others
		defer n.Run("nft delete table ip last")
		_ = conn.SetReadDeadline(time.Now().Add(testnet.Patience))
		for {
			messages, err := conn.Receive()
			if err != nil {
				n.t.Fatal(err)
			}
			for _, m := range messages {
				switch int(m.Header.Type) & 0xff {
				case unix.NFT_MSG_NEWSETELEM, unix.NFT_MSG_DELSETELEM:
					count++
				case unix.NFT_MSG_NEWTABLE:
					if m.Data[0] == unix.NFPROTO_IPV4 {
						return count
					}
				}
			}
		}
	}
}

// A restart changes only what differs, and there is no moment without rules.
func TestRestart(t *testing.T) {
	n := newNode(t)
	want := n.sample()
	table := n.open()
	counted := changedElements(n)
	n.apply(table, want)
	if got := counted(); got < 20 {
		t.Errorf("the first time, %d elements changed", got)
	}

	// C may not send this to A, and tries to all the time.
	sink := make(chan string, 1000)
	var listener net.PacketConn
	n.a.Within(func() { listener, _ = net.ListenPacket("udp4", ":80") })
	defer listener.Close()
	go func() {
		defer close(sink)
		buf := make([]byte, 100)
		for {
			n, from, err := listener.ReadFrom(buf)
			if err != nil {
				return
			}
			select {
			case sink <- from.(*net.UDPAddr).IP.String() + " " + string(buf[:n]):
			default:
			}
		}
	}()
	conn, err := n.c.Dial("udp4", netip.AddrPortFrom(n.a.IPv4, 80).String())
	if err != nil {
		t.Fatal(err)
	}
	var stop atomic.Bool
	sent := make(chan int)
	go func() {
		count := 0
		for ; !stop.Load(); count++ {
			_, _ = conn.Write([]byte("x"))
		}
		sent <- count
	}()

	for range 5 {
		if err := table.Close(); err != nil {
			t.Error(err)
		}
		table = n.open()
		idents, pods := table.Adopted()
		if !maps.Equal(idents, want.Idents) || !maps.EqualFunc(pods, want.Pods, func(p Pod, w *Pod) bool { return p == *w }) {
			t.Errorf("adopted idents %v and pods %v", idents, pods)
		}
		n.apply(table, want)
	}
	_ = table.Close()
	table = n.open()
	less := n.sample()
	delete(less.Pods, n.b.IPv4)
	counted = changedElements(n)
	n.apply(table, less)
	if got := counted(); got != 4 { // in4, out4, self4, isolated4
		t.Errorf("with one pod less, %d elements changed", got)
	}
	stop.Store(true)
	if count := <-sent; count < 100 {
		t.Errorf("only %d datagrams were sent, so the test shows nothing", count)
	}
	select {
	case from := <-sink:
		t.Errorf("a datagram from %s got through", from)
	default:
	}
	// Without rules they arrive.
	n.Within(func() { err = Remove(tableName) })
	if err != nil {
		t.Error(err)
	}
	_ = listener.SetReadDeadline(time.Now().Add(testnet.Patience))
	if _, err := conn.Write([]byte("last")); err != nil {
		t.Fatal(err)
	}
	var last string
	for last = range sink { // some of those before may still have been on their way
		if strings.HasSuffix(last, " last") {
			break
		}
	}
	if last != n.c.IPv4.String()+" last" {
		t.Errorf("without rules, a datagram is %q", last)
	}
}

package rules

import (
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/coracle-project/coracle/cluster/proxy/testnet"
)

func benchTable(b *testing.B, s *testnet.Space) *Table {
	c := config()
	c.Log = slog.New(slog.DiscardHandler)
	return testnet.Open(b, s, func() (*Table, error) { return Open(c) })
}

// policies are so many classes per direction, each with five peers, a range of ports and a block;
// and pods that have them.
func policies(classes, pods int) Change {
	change := Change{Idents: map[netip.Addr]uint32{}, Pods: map[netip.Addr]*Pod{}, Classes: [2]map[uint32]*Class{{}, {}}}
	for i := range pods {
		a := netip.AddrFrom4([4]byte{10, 244, byte(1 + i/250), byte(i % 250)})
		class := uint32(i%max(classes, 1)) + 1
		if classes == 0 {
			class = 0
		}
		change.Pods[a], change.Idents[a] = &Pod{class, class}, uint32(1000+i)
	}
	for i := range classes {
		c := &Class{}
		for p := range 5 {
			c.Peers = append(c.Peers, Peer{uint32(1000 + i*5 + p), port(tcp, 80)})
		}
		c.Peers = append(c.Peers, Peer{uint32(1000 + i), PortRange{udp, 1000, uint16(2000 + i)}})
		first := netip.AddrFrom4([4]byte{20, byte(i >> 8), byte(i), 0})
		c.Blocks = []Block{{first, netip.AddrFrom4([4]byte{20, byte(i >> 8), byte(i), 99}), port(tcp, 443)}}
		change.Classes[Ingress][uint32(i+1)], change.Classes[Egress][uint32(i+1)] = c, c
	}
	return change
}

// BenchmarkPodChange gives one of 500 pods another class and ident, among 1,000 classes per
// direction.
func BenchmarkPodChange(b *testing.B) {
	table := benchTable(b, &testnet.New(b).Space)
	if err := table.Apply(b.Context(), policies(1000, 500)); err != nil {
		b.Fatal(err)
	}
	a := netip.MustParseAddr("10.244.1.7")
	i := uint32(0)
	for b.Loop() {
		i++
		change := Change{Idents: map[netip.Addr]uint32{a: 1 + i%2}, Pods: map[netip.Addr]*Pod{a: {1 + i%2, 3 + i%2}}}
		if err := table.Apply(b.Context(), change); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkClassChange gives one of 1,000 classes another peer and port.
func BenchmarkClassChange(b *testing.B) {
	table := benchTable(b, &testnet.New(b).Space)
	if err := table.Apply(b.Context(), policies(1000, 500)); err != nil {
		b.Fatal(err)
	}
	i := 0
	for b.Loop() {
		i++
		c := &Class{Peers: []Peer{{uint32(1 + i%2), port(tcp, uint16(80+i%2))}}}
		if err := table.Apply(b.Context(), Change{Classes: [2]map[uint32]*Class{{7: c}}}); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkNewClass adds a class to 1,000 and takes it away again.
func BenchmarkNewClass(b *testing.B) {
	table := benchTable(b, &testnet.New(b).Space)
	if err := table.Apply(b.Context(), policies(1000, 500)); err != nil {
		b.Fatal(err)
	}
	i := 0
	for b.Loop() {
		i++
		var c *Class
		if i%2 == 1 {
			c = &Class{Peers: []Peer{{1, port(tcp, 80)}}}
		}
		if err := table.Apply(b.Context(), Change{Classes: [2]map[uint32]*Class{{2000: c}}}); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkFullSync is from nothing to all rules in force, and from a restart to that with nothing
// to change.
func BenchmarkFullSync(b *testing.B) {
	for _, classes := range []int{10, 1000} {
		want := policies(classes, 500)
		for _, restart := range []bool{false, true} {
			b.Run(fmt.Sprintf("%d/restart=%v", classes, restart), func(b *testing.B) {
				node := testnet.New(b)
				for b.Loop() {
					b.StopTimer()
					table := benchTable(b, &node.Space)
					b.StartTimer()
					if err := table.Apply(b.Context(), want); err != nil {
						b.Fatal(err)
					}
					b.StopTimer()
					if !restart {
						node.Within(func() { _ = Remove(tableName) })
					}
					_ = table.Close()
					b.StartTimer()
				}
			})
		}
	}
}

// BenchmarkPacket sends datagrams from one pod to another: without a table, with one but no policy,
// and with so many classes. They pass by the last set that is asked.
func BenchmarkPacket(b *testing.B) {
	for _, classes := range []int{-1, 0, 1, 1000} {
		b.Run(fmt.Sprint(classes), func(b *testing.B) {
			n := testnet.New(b)
			from, to := n.Pod("from"), n.Pod("to")
			var listener net.PacketConn
			to.Within(func() { listener, _ = net.ListenPacket("udp4", ":80") })
			defer listener.Close()
			if classes >= 0 {
				table := benchTable(b, &n.Space)
				change := policies(classes, 500)
				change.Pods[from.IPv4], change.Pods[to.IPv4] = &Pod{}, &Pod{}
				if classes > 0 {
					c := change.Classes[Ingress][1]
					c.Blocks = append(c.Blocks, Block{from.IPv4, to.IPv4, port(udp, 80)})
					change.Pods[from.IPv4].Egress, change.Pods[to.IPv4].Ingress = 1, 1
				}
				if err := table.Apply(b.Context(), change); err != nil {
					b.Fatal(err)
				}
			}
			conn, err := from.Dial("udp4", netip.AddrPortFrom(to.IPv4, 80).String())
			if err != nil {
				b.Fatal(err)
			}
			defer conn.Close()
			send := func() {
				if _, err := conn.Write([]byte("x")); err != nil {
					b.Fatal(err)
				}
			}
			send()
			if _, _, err := listener.ReadFrom(make([]byte, 10)); err != nil {
				b.Fatal(err)
			}
			var took []time.Duration
			for b.Loop() { // the CPU that sends a packet forwards it as well, before the call returns
				began := time.Now()
				for range 100 {
					send()
				}
				took = append(took, time.Since(began)/100)
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/10].Nanoseconds()), "p10-ns/packet")
			b.ReportMetric(float64(took[len(took)/2].Nanoseconds()), "p50-ns/packet")
		})
	}
}

package rules

import (
	"fmt"
	"log/slog"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/cluster/proxy/testnet"
)

// services are count Services with ten endpoints each.
func services(count int) map[Key]*Port {
	all := make(map[Key]*Port, count)
	for i := range count {
		p := &Port{
			Protocol: unix.IPPROTO_TCP,
			Frontends: []Frontend{
				{Addr: netip.AddrFrom4([4]byte{10, 96 + byte(i>>16), byte(i >> 8), byte(i)}), Port: 80},
			},
			Backends: []Backend{{}},
		}
		for e := range 10 {
			n := i*10 + e
			p.Backends[0].Endpoints = append(p.Backends[0].Endpoints,
				netip.AddrPortFrom(netip.AddrFrom4([4]byte{11, byte(n >> 16), byte(n >> 8), byte(n)}), 8080))
		}
		all[Key(fmt.Sprintf("default/service-%d:http/TCP/IPv4", i))] = p
	}
	return all
}

func benchTable(b *testing.B, s *testnet.Space) *Table {
	c := config()
	c.Log = slog.New(slog.DiscardHandler)
	return testnet.Open(b, s, func() (*Table, error) { return Open(c) })
}

var sizes = []int{100, 1000, 10000, 45000}

// BenchmarkFullSync is from nothing to all rules in force.
func BenchmarkFullSync(b *testing.B) {
	for _, count := range sizes {
		b.Run(fmt.Sprint(count), func(b *testing.B) {
			want := services(count)
			node := testnet.New(b)
			b.ReportAllocs()
			for b.Loop() {
				b.StopTimer()
				table := benchTable(b, &node.Space)
				b.StartTimer()
				if err := table.Apply(b.Context(), Change{Ports: want}); err != nil {
					b.Fatal(err)
				}
				b.StopTimer()
				node.Within(func() {
					if err := Remove(tableName); err != nil {
						b.Error(err)
					}
				})
				_ = table.Close()
				b.StartTimer()
			}
		})
	}
}

// BenchmarkRestart is a restart with nothing to change.
func BenchmarkRestart(b *testing.B) {
	for _, count := range sizes[:3] {
		b.Run(fmt.Sprint(count), func(b *testing.B) {
			want := services(count)
			node := testnet.New(b)
			if err := benchTable(b, &node.Space).Apply(b.Context(), Change{Ports: want}); err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				table := benchTable(b, &node.Space)
				if err := table.Apply(b.Context(), Change{Ports: want}); err != nil {
					b.Fatal(err)
				}
				_ = table.Close()
			}
		})
	}
}

// BenchmarkEndpointChange takes one endpoint from a Service, and gives it back.
func BenchmarkEndpointChange(b *testing.B) {
	for _, count := range sizes {
		b.Run(fmt.Sprint(count), func(b *testing.B) {
			want := services(count)
			table := benchTable(b, &testnet.New(b).Space)
			if err := table.Apply(b.Context(), Change{Ports: want}); err != nil {
				b.Fatal(err)
			}
			key := Key("default/service-7:http/TCP/IPv4")
			all := *want[key]
			fewer := all
			fewer.Backends = []Backend{{Endpoints: all.Backends[0].Endpoints[1:]}}
			i := 0
			for b.Loop() {
				i++
				change := &all
				if i%2 == 1 {
					change = &fewer
				}
				if err := table.Apply(b.Context(), Change{Ports: map[Key]*Port{key: change}}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

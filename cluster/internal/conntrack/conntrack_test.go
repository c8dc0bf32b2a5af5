package conntrack_test

import (
	"fmt"
	"net"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/cluster/internal/conntrack"
	"github.com/coracle-project/coracle/cluster/proxy/testnet"
)

func TestEntries(t *testing.T) {
	n := testnet.New(t)
	pod := n.Pod("a")
	pod.Serve("tcp", 8080)
	// The tracker works where rules ask for it, which Services' do. This one translates a port.
	n.Run("nft add table inet test")
	n.Run("nft add chain inet test out { type nat hook output priority -100; }")
	n.Run(fmt.Sprintf("nft add rule inet test out tcp dport 80 dnat ip to %s:8080", pod.IPv4))
	n.Run(fmt.Sprintf("nft add rule inet test out tcp dport 80 dnat ip6 to [%s]:8080", pod.IPv6))
	answered := func(address netip.Addr) netip.AddrPort {
		conn, err := n.Dial("tcp", netip.AddrPortFrom(address, 80).String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return conn.LocalAddr().(*net.TCPAddr).AddrPort()
	}
	four, six := answered(pod.IPv4), answered(pod.IPv6)
	n.Within(func() {
		tracker, err := conntrack.Open()
		if err != nil {
			t.Fatal(err)
		}
		defer tracker.Close()
		for pass, want := range []int{2, 0} {
			found := 0
			err = tracker.List(func(e *conntrack.Entry) bool {
				from := e.Original.Source
				if from != four && from != six {
					return true
				}
				found++
				if !e.Answered || e.Original.Protocol != unix.IPPROTO_TCP || e.Original.Destination.Port() != 80 ||
					e.Reply.Source != netip.AddrPortFrom(e.Original.Destination.Addr(), 8080) || e.Reply.Destination != from {
					t.Errorf("entry %+v", e)
				}
				for _, want := range []bool{true, false} {
					if deleted, err := tracker.Delete(e); deleted != want || err != nil {
						t.Errorf("deleted %t, want %t, %v", deleted, want, err)
					}
				}
				return true
			})
			if err != nil || found != want {
				t.Errorf("pass %d: %d entries, %v", pass, found, err)
			}
		}
	})
}

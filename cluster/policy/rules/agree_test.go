package rules

import (
	"math/rand/v2"
	"net/netip"
	"os"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/cluster/proxy/testnet"
)

// seedVariable makes TestKernelAndAllowedAgree repeat what it did with a seed.
const seedVariable = "CORACLE_TEST_SEED"

// The kernel and Allowed decide the same, for random rules and packets.
func TestKernelAndAllowedAgree(t *testing.T) {
	seed := rand.Uint64()
	if text := os.Getenv(seedVariable); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%s=%d repeats this", seedVariable, seed)
	r := rand.New(rand.NewPCG(seed, 0))
	n := newNode(t)
	o := newObserver(t, n.Node)
	outside := map[bool][]netip.Addr{false: {n.Outside.IPv4}, true: {n.Outside.IPv6}}
	for i := range 6 {
		v4, v6 := netip.AddrFrom4([4]byte{203, 0, 113, byte(i)}), netip.AddrFrom16([16]byte{0x20, 1, 0xd, 0xb8, 0, 7, 15: byte(i + 1)})
		n.Outside.Run("ip addr add " + v4.String() + "/32 dev lo")
		n.Outside.Run("ip addr add " + v6.String() + "/128 dev lo")
		outside[false], outside[true] = append(outside[false], v4), append(outside[true], v6)
	}
	spaces := []*testnet.Space{n.a, n.b, n.c, n.Outside}
	address := func(s *testnet.Space, six bool) netip.Addr {
		switch {
		case s == n.Outside:
			return outside[six][r.IntN(len(outside[six]))]
		case six:
			return s.IPv6
		}
		return s.IPv4
	}
	anything := func() netip.Addr { return address(spaces[r.IntN(len(spaces))], r.IntN(2) == 0) }
	const idents, classes = 4, 3
	randomPacket := func() packet {
		six := r.IntN(2) == 0
		from, to := r.IntN(len(spaces)), r.IntN(len(spaces)-1)
		if to >= from {
			to++
		}
		p := packet{from: spaces[from], source: address(spaces[from], six), destination: address(spaces[to], six), port: uint16(r.IntN(20))}
		p.protocol = []byte{tcp, tcp, udp, sctp, unix.IPPROTO_ICMP}[r.IntN(5)]
		if six && p.protocol == unix.IPPROTO_ICMP {
			p.protocol = unix.IPPROTO_ICMPV6
		}
		return p
	}
	table := n.open()
	passed, all := 0, 0
	for range 25 {
		change := Change{Idents: map[netip.Addr]uint32{}, Pods: map[netip.Addr]*Pod{}, Classes: [2]map[uint32]*Class{{}, {}}}
		for _, s := range spaces {
			for _, six := range []bool{false, true} {
				change.Idents[address(s, six)] = uint32(r.IntN(idents + 1))
				if s == n.Outside {
					continue
				}
				switch r.IntN(8) {
				case 0:
					change.Pods[address(s, six)] = nil
				default:
					change.Pods[address(s, six)] = &Pod{uint32(r.IntN(classes + 1)), uint32(r.IntN(classes + 1))}
				}
			}
		}
		for d := range change.Classes {
			for number := range uint32(classes) {
				switch r.IntN(6) {
				case 0: // as before
				case 1:
					change.Classes[d][number+1] = nil
				default:
					change.Classes[d][number+1] = randomClass(r, idents, anything)
				}
			}
		}
		n.apply(table, change)
		packets := make([]packet, 40)
		for i := range packets {
			packets[i] = randomPacket()
		}
		for i, got := range o.verdicts(t, packets) {
			if got {
				passed++
			}
			all++
			if want := table.Allowed(packets[i].connection()); got != want {
				t.Errorf("%s passes: %v, but is allowed: %v", packets[i], got, want)
			}
		}
	}
	t.Logf("%d of %d packets passed", passed, all)
	if passed < all/20 || passed > all*19/20 {
		t.Error("nearly all were decided alike, so the test shows little")
	}
	select {
	case <-table.Changed():
		t.Error("a change by someone else was seen")
	default:
	}
}

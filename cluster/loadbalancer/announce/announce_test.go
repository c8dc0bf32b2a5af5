package announce

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/cluster/proxy/testnet"
)

// The node answers for what it announces and for nothing else, and leaves nothing.
func TestOnlyAnnouncedAddressesAreAnswered(t *testing.T) {
	s := newSegment(t)
	before := s.left()
	s.answers(false, announced4, announced6, other4, other6)
	a, _ := s.announce("", both...)
	s.saidBoth()
	s.answers(true, announced4, announced6)
	s.answers(false, other4, other6)
	a.Set([]netip.Addr{other4, other6})
	s.said(other4.String()+" out", other6.String()+" out")
	s.answers(true, other4, other6)
	s.answers(false, announced4, announced6)
	a.Set(nil)
	s.until("nothing is left", func() bool { return s.left() == before })
	s.answers(false, other4, other6)
}

// Neighbours check by packets to the address itself whether it is still there.
func TestNeighboursFindAddressesStillThere(t *testing.T) {
	s := newSegment(t)
	s.announce("", both...)
	s.saidBoth()
	s.answers(true, both...)
	s.until("the machine outside may ask", func() (may bool) { // its own address is checked for duplicates first
		s.Outside.Within(func() {
			l, err := netlink.LinkByName("eth0")
			if err != nil {
				t.Error(err)
				return
			}
			addresses, err := netlink.AddrList(l, netlink.FAMILY_V6)
			may = err == nil && slices.ContainsFunc(addresses, func(a netlink.Addr) bool {
				return a.IP.IsLinkLocalUnicast() && a.Flags&unix.IFA_F_TENTATIVE == 0
			})
		})
		return may
	})
	for _, address := range both {
		s.Outside.Within(func() {
			n := &netlink.Neigh{LinkIndex: index(t, "eth0"), IP: address.AsSlice(), State: netlink.NUD_PROBE}
			mac, err := net.ParseMAC(s.mac)
			if n.HardwareAddr = mac; err == nil {
				err = netlink.NeighSet(n)
			}
			if err != nil {
				t.Error(err)
			}
		})
		s.until(address.String()+" is found", func() bool {
			state := s.neighbour(address).State
			if state == netlink.NUD_FAILED {
				t.Fatalf("%s is given up", address)
			}
			return state == netlink.NUD_REACHABLE
		})
	}
}

// A neighbour that knows an address elsewhere learns at once that it has come here.
func TestTheSegmentIsTold(t *testing.T) {
	s := newSegment(t)
	elsewhere := net.HardwareAddr{2, 0, 0, 0, 0, 1}
	for _, address := range both {
		s.Outside.Within(func() {
			if err := netlink.NeighSet(&netlink.Neigh{
				LinkIndex: index(t, "eth0"), IP: address.AsSlice(), HardwareAddr: elsewhere, State: netlink.NUD_REACHABLE,
			}); err != nil {
				t.Error(err)
			}
		})
	}
	s.announce("", both...)
	for _, address := range both {
		s.until(address.String()+" has moved", func() bool { return s.neighbour(address).HardwareAddr.String() == s.mac })
	}
	// The sockets for that are closed: no packet of the network comes to this process.
	for _, kind := range []string{"packet", "raw6"} {
		s.until("no socket of "+kind+" is open", func() bool {
			var data []byte
			s.Within(func() {
				var err error
				if data, err = os.ReadFile("/proc/thread-self/net/" + kind); err != nil {
					t.Error(err)
				}
			})
			return strings.Count(string(data), "\n") == 1 // the heading
		})
	}
}

// The kernel answers while no process runs, and the next one takes over what it finds.
func TestAnnouncementsOutliveTheProcess(t *testing.T) {
	s := newSegment(t)
	before := s.left()
	_, stop := s.announce("", append(both, other4)...)
	s.saidBoth()
	s.until("all is announced", func() bool { return s.resolve(other4) == s.mac })
	stop()
	s.answers(true, append(both, other4)...)
	a, _ := s.announce("", both...)
	s.saidBoth()
	s.answers(true, both...)
	s.until("what no one wants any more is withdrawn", func() bool { return s.resolve(other4) == "" })
	a.Set(nil)
	s.until("nothing is left", func() bool { return s.left() == before })
}

// What goes while no process runs is put back by the next one: it knows its entries without routes.
func TestAnnouncementsLostWhileNoProcessRuns(t *testing.T) {
	for _, remove := range []string{"ip link del " + sink, "ip route del " + announced4.String() + " dev " + sink} {
		s := newSegment(t)
		_, stop := s.announce("", both...)
		s.saidBoth()
		want := s.announcing()
		stop()
		s.Run(remove)
		if s.whole(want) {
			t.Errorf("%s removes nothing", remove)
		}
		s.announce("", both...)
		s.saidBoth()
		s.until("all is back", func() bool { return s.whole(want) })
		s.answers(true, both...)
	}
}

// What a killed process has left is removed, and nothing else.
func TestRemove(t *testing.T) {
	s := newSegment(t)
	s.Run("ip neigh add proxy 192.0.2.60 dev out")
	before := s.left()
	_, stop := s.announce("", both...)
	s.saidBoth()
	stop()
	if s.left() == before {
		t.Fatal("nothing was announced")
	}
	for range 2 { // the second time there is nothing to do
		s.Within(func() {
			if err := Remove(sink); err != nil {
				t.Error(err)
			}
		})
		if left := s.left(); left != before {
			t.Errorf("left is\n%s\nwant\n%s", left, before)
		}
	}
	s.answers(false, both...)
}

// Routes of other programs stay, those to the sink and to the announced addresses, too, and so do
// their entries.
func TestOthersRoutesStay(t *testing.T) {
	s := newSegment(t)
	a, _ := s.announce("", both...)
	s.saidBoth()
	const foreign = "192.0.2.60"
	for _, command := range []string{
		"ip neigh add proxy " + foreign + " dev out", "ip route add " + foreign + " dev " + sink + " proto static",
		"ip route add " + announced4.String() + " dev out metric 50", "ip -6 route add " + announced6.String() + " dev out metric 50",
	} {
		s.Run(command)
	}
	routes := func() string {
		return s.Run("ip route show proto static") + s.Run("ip route show metric 50") + s.Run("ip -6 route show metric 50") +
			s.Run("ip neigh show proxy "+foreign)
	}
	before := routes()
	if n := strings.Count(before, "\n"); n != 4 {
		t.Fatalf("%d lines: nothing is tested: %s", n, before)
	}
	a.Set([]netip.Addr{other4}) // which looks at all that is there, and removes both
	s.said(other4.String() + " out")
	if now, ours := routes(), s.routes(); now != before || strings.Count(ours, "\n") != 1 {
		t.Errorf("others have\n%s\nwant\n%s\nours are %s", now, before, ours)
	}
}

// The kernel drops its entries when an interface goes down. They come back with it.
func TestAnInterfaceThatWasDown(t *testing.T) {
	s := newSegment(t)
	_, stop := s.announce("", both...)
	s.saidBoth()
	stop()
	down := func() {
		s.Run("ip link set out down")
		s.Run("ip link set out up")
		s.Run("ip addr replace " + testnet.Node6 + "/64 dev out nodad") // which the kernel drops, too
	}
	down()
	s.answers(false, both...) // without an announcer they are lost
	s.announce("", both...)
	s.saidBoth()
	s.answers(true, both...)
	down()
	for _, address := range both {
		s.until(address.String()+" is announced again", func() bool { return s.resolve(address) == s.mac })
	}
}

// An interface that comes later is used as soon as it is there.
func TestAnInterfaceThatComesLater(t *testing.T) {
	s := newSegment(t)
	later := netip.MustParseAddr("198.51.100.50")
	s.announce("", later)
	s.said(ErrNoInterface.Error())
	s.Run("ip addr add 198.51.100.1/24 dev out")
	s.said(later.String() + " out")
	s.Outside.Run("ip addr add 198.51.100.9/24 dev eth0")
	s.answers(true, later)
	s.Run("ip addr del 198.51.100.1/24 dev out")
	s.said(ErrNoInterface.Error())
	s.answers(false, later)
}

func TestAddressesThatCannotBeAnnounced(t *testing.T) {
	for name, test := range map[string]struct {
		prepare func(s *segment)
		named   string
		address string
		want    string
	}{
		"the node's own":          {address: testnet.Node4, want: "this node has 192.0.2.1 itself"},
		"of no network":           {address: "203.0.113.7", want: "--load-balancer-interface"},
		"on an unknown interface": {named: "eth9", address: "192.0.2.50", want: "--load-balancer-interface eth9"},
		"on lo":                   {named: "lo", address: "192.0.2.50", want: "interface lo has no neighbours"},
		"with a route elsewhere": {
			prepare: func(s *segment) {
				s.Run("ip route add 192.0.2.50 via 192.0.2.9")
			}, address: "192.0.2.50", want: "has another route to 192.0.2.50",
		},
		"that another program answers for": {
			prepare: func(s *segment) { s.Run("ip neigh add proxy 192.0.2.50 dev out") }, address: "192.0.2.50",
			want: "'ip neigh del proxy 192.0.2.50 dev out'",
		},
		"without forwarding": {
			prepare: func(s *segment) {
				s.Within(func() { write(s.t, "ipv4/ip_forward", "0") })
			}, address: "192.0.2.50", want: "net.ipv4.conf.out.forwarding=1",
		},
		"on an interface that is named": {named: "out", address: "203.0.113.7", want: "203.0.113.7 out"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSegment(t)
			if test.prepare != nil {
				test.prepare(s)
			}
			s.announce(test.named, netip.MustParseAddr(test.address))
			s.said(test.want)
		})
	}
}

// Another machine claims the address by ARP, asks for others and sends what is no ARP at all, as
// fast as it can. The node goes on answering for its addresses and for no others. The same claim is
// believed by a machine that has to.
func TestForgedARPChangesNothing(t *testing.T) {
	s := newSegment(t)
	s.announce("", both...)
	s.saidBoth()
	before := s.left()
	forger := net.HardwareAddr{2, 0, 0, 0, 0, 0x66}
	claim := func(of netip.Addr) [][]byte {
		return [][]byte{ethernet(arpPacket(1, of, forger, make([]byte, 6))), ethernet(arpPacket(2, of, forger, broadcast))}
	}
	// It works: who resolves the node's own address believes it.
	s.resolve(netip.MustParseAddr(testnet.Node4))
	s.frames("out", &s.Space, claim(netip.MustParseAddr(testnet.Node4))...)
	s.until("the forged claim is believed", func() bool {
		return s.neighbour(netip.MustParseAddr(testnet.Node4)).HardwareAddr.String() == forger.String()
	})
	s.Outside.Run("ip neigh flush dev eth0")

	flood := claim(announced4)
	for cut := range 28 { // too short
		flood = append(flood, ethernet(arpPacket(1, announced4, forger, forger)[:cut]))
	}
	for at := range 8 { // of other hardware, protocols, sizes and operations
		wrong := arpPacket(1, announced4, forger, forger)
		wrong[at] ^= 0xff
		flood = append(flood, ethernet(wrong))
	}
	for host := range 200 { // questions for the rest of the network, from machines that do not exist
		question := arpPacket(1, netip.AddrFrom4([4]byte{192, 0, 2, byte(host + 52)}), forger, make([]byte, 6))
		copy(question[14:], []byte{192, 0, 2, byte(250 - host)})
		flood = append(flood, ethernet(question))
	}
	for range 50 {
		s.frames("eth0", s.Outside, flood...)
	}
	s.Outside.Run("ip neigh flush dev eth0")
	s.answers(true, both...)
	s.answers(false, other4, other6)
	if now := s.left(); now != before {
		t.Errorf("the node has\n%s\nwant\n%s", now, before)
	}
	// What the kernel notes of the claims is of no use to it: it sends nothing for the address to
	// the network.
	if way := s.Run("ip route get " + announced4.String()); !strings.Contains(way, "dev "+sink+" ") {
		t.Errorf("the node sends packets for %s elsewhere: %s", announced4, way)
	}
}

// The packets that are sent are those of the specifications.
func TestPackets(t *testing.T) {
	mac := net.HardwareAddr{2, 0, 0, 0, 0, 7}
	arp := arpPacket(2, announced4, mac, broadcast)
	want := []byte{0, 1, 8, 0, 6, 4, 0, 2, 2, 0, 0, 0, 0, 7, 192, 0, 2, 50, 255, 255, 255, 255, 255, 255, 192, 0, 2, 50}
	if !slices.Equal(arp, want) {
		t.Errorf("ARP is %x, want %x", arp, want)
	}
	na := naPacket(announced6, mac)
	if len(na) != 32 || na[0] != 136 || na[4] != 0x20 || netip.AddrFrom16([16]byte(na[8:24])) != announced6 ||
		!slices.Equal(na[24:], append([]byte{2, 1}, mac...)) {
		t.Errorf("the neighbour advertisement is %x", na)
	}
}

func TestRecordsOfSysctls(t *testing.T) {
	s := newSegment(t)
	s.Within(func() {
		out := index(t, "out")
		r := record{delayOf(false, out): "80", delayOf(true, out): "60", proxyNDP: "0"}
		want := fmt.Sprintf("4/%d=80 6/%d=60 ndp=0", out, out)
		for _, text := range []string{r.String(), "4out=80 6out=60 ndp=0"} { // an earlier release wrote names
			if back := parseRecord(text); back.String() != want {
				t.Errorf("%q becomes %q, want %q", text, back, want)
			}
		}
		for _, foreign := range []string{"uplink of rack 4=7", "4../../x=1", "5out=1", "4=1", "=1", "4/=1", "4/out=1", "4/99999=1", "7/1=1"} {
			if got := parseRecord(foreign); len(got) != 0 {
				t.Errorf("%q is taken for %q", foreign, got)
			}
		}
	})
}

package announce

import (
	"encoding/binary"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/cluster/proxy/testnet"
)

// announcing is what there must be for the node to answer.
func (s *segment) announcing() string {
	return s.Run("ip neigh show proxy") + s.Run("ip -6 neigh show proxy") + s.routes() +
		s.tables() + s.settings()
}

// routes are those to the sink.
func (s *segment) routes() (lines string) {
	for line := range strings.Lines(s.Run("ip route") + s.Run("ip -6 route")) {
		if strings.Contains(line, "dev "+sink+" proto 85") {
			lines += line
		}
	}
	return lines
}

// settings are the sysctls that announcers change.
func (s *segment) settings() string {
	return fmt.Sprint("ndp=", s.sysctl("ipv6/conf/all/proxy_ndp"), " 4=", s.sysctl("ipv4/neigh/out/proxy_delay"), " 6=",
		s.sysctl("ipv6/neigh/out/proxy_delay"))
}

// tables are the nftables tables with all they have.
func (s *segment) tables() string { return s.Run("nft -s list ruleset") }

// whole reports whether the sink is there with all that announcing shows.
func (s *segment) whole(want string) bool {
	links := s.Run("ip -o link")
	return strings.Contains(links, " "+sink+"@") && strings.Contains(links, " out@") && s.announcing() == want
}

// What another program takes away comes back while an announcer runs, and what sysctls were before
// is still known.
func TestWhatOthersRemoveComesBack(t *testing.T) {
	for name, test := range map[string]struct {
		remove  string // commands
		control bool   // without an announcer: nothing comes back
		// noted says that a look between two of the commands finds an address that cannot be
		// announced, which is reported: nothing is lost then.
		noted bool
	}{
		"without an announcer":    {remove: "ip link del " + sink, control: true},
		"the sink":                {remove: "ip link del " + sink},
		"the sink's other end":    {remove: "ip link del coracle-lx1"},
		"the sink is set down":    {remove: "ip link set " + sink + " down"},
		"the sink's name":         {remove: "ip link set " + sink + " down name other"},
		"a route":                 {remove: "ip route del 192.0.2.50 dev " + sink},
		"all routes of the sink":  {remove: "ip route flush dev " + sink + ";ip -6 route flush dev " + sink},
		"proxy_ndp":               {remove: "sysctl -qw net.ipv6.conf.all.proxy_ndp=0"},
		"all tables of nftables":  {remove: "nft flush ruleset"},
		"the chains of its table": {remove: "nft flush table inet " + sink},
		"the uplink is set down": {noted: true, remove: "ip link set out down;ip link set out up;ip addr replace " + testnet.Node6 +
			"/64 dev out nodad"},
		"the uplink's address": {noted: true, remove: "ip addr del " + testnet.Node4 + "/24 dev out;ip addr add " + testnet.Node4 +
			"/24 dev out"},
		"the uplink's name": {
			noted: true,
			remove: "ip link set out down;ip link set out name wan;ip link set wan name out up;ip addr replace " + testnet.Node6 +
				"/64 dev out nodad",
		},
		"what one cannot hear of": {remove: "ip neigh del proxy 192.0.2.50 dev out;ip link set out promisc on;ip link set out promisc off"},
		"what is removed two times": {noted: true, remove: "ip link del " + sink +
			";ip route flush dev out;ip link set out down;ip link set out up;ip addr replace " + testnet.Node6 + "/64 dev out nodad"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSegment(t)
			before := s.settings()
			remove := func() {
				for command := range strings.SplitSeq(test.remove, ";") {
					s.Run(command)
				}
			}
			a, stop := s.announce("", both...)
			s.saidBoth()
			s.answers(true, both...)
			want := s.announcing()
			if test.control {
				stop()
				remove()
				if s.whole(want) {
					t.Fatal("without an announcer all is there, so this shows nothing")
				}
				return
			}
			remove()
			began := time.Now()
			s.until("all is back", func() bool { return s.whole(want) })
			t.Logf("back after %v", time.Since(began))
			s.answers(true, both...)
			said := func() int {
				return s.log.Count("announcements of load balancers' addresses were lost") + s.log.Count("another program changed the nftables table")
			}
			s.until("the log says so", func() bool { return said() > 0 || test.noted }) // after it is so
			if n := said(); n > 1 {
				t.Errorf("the log says %d times that something was lost", n)
			}
			a.Set(nil)
			s.until("nothing is left", func() bool {
				return s.settings() == before && s.Run("ip neigh show proxy")+s.Run("ip -6 neigh show proxy")+s.Run("nft list tables") == "" &&
					!strings.Contains(s.Run("ip -o link"), "coracle-l")
			})
		})
	}
}

// An uplink that is replaced by another, with another name and index, is used as soon as it has the
// network.
func TestAnotherUplink(t *testing.T) {
	s := newSegment(t)
	s.announce("", both...)
	s.saidBoth()
	s.Run("ip link add br0 type bridge")
	s.Run("ip addr flush dev out scope global")
	s.Run("ip link set out master br0")
	s.Run("ip addr add " + testnet.Node4 + "/24 dev br0")
	s.Run("ip addr add " + testnet.Node6 + "/64 dev br0 nodad")
	s.Run("ip link set br0 up")
	s.said(announced4.String()+" br0", announced6.String()+" br0")
	s.Within(func() { s.mac = macOf(t, "br0") })
	s.answers(true, both...)
	if proxied := s.Run("ip neigh show proxy") + s.Run("ip -6 neigh show proxy"); strings.Contains(proxied, "dev out") {
		t.Errorf("the node still answers on the interface that lost the network: %s", proxied)
	}
	if n := s.log.Count("were lost"); n > 1 {
		t.Errorf("the log says %d times that announcements were lost", n)
	}
}

// A route that takes the place of an address's is told of; when it is gone, the address is back.
func TestAnotherRoute(t *testing.T) {
	s := newSegment(t)
	s.announce("", both...)
	s.saidBoth()
	s.answers(true, both...)
	want := s.announcing()
	s.Run("ip route replace " + announced4.String() + " dev out")
	s.Run("ip -6 route replace " + announced6.String() + " dev out")
	s.said(announced4.String()+" this node has another route", announced6.String()+" this node has another route")
	s.Run("ip route del " + announced4.String() + " dev out")
	s.Run("ip -6 route del " + announced6.String() + " dev out")
	s.Run("ip link set out promisc on") // it is not told of a route to another interface
	s.until("all is back", func() bool { return s.whole(want) })
}

// A new hardware address of the uplink is told to the segment.
func TestTheSegmentIsToldOfAnotherHardwareAddress(t *testing.T) {
	s := newSegment(t)
	s.announce("", announced4)
	s.said(announced4.String() + " out")
	s.answers(true, announced4)
	const mac = "02:00:00:00:00:77"
	s.Run("ip link set out address " + mac)
	s.until("the machine outside knows", func() bool { return s.neighbour(announced4).HardwareAddr.String() == mac })
}

// A subscription hears of the interfaces that it is to hear of, of routes to the sink that are
// removed, of those that replace others, and of sysctls; not of what each pod's start changes.
func TestOnlyWhatConcernsAnnouncementsIsHeard(t *testing.T) {
	s := newSegment(t)
	s.Run("ip link add " + sink + " type veth peer name coracle-lx1")
	s.Run("ip link set " + sink + " up")
	var heard *subscription
	var out int
	s.Within(func() {
		out = index(t, "out")
		sub, err := subscribe(slog.Default())
		if err != nil {
			t.Error(err)
			return
		}
		heard = sub
		if !sub.hear(false, index(t, sink), []int{out}) {
			t.Error("it hears of something else than before, and does not say so")
		}
	})
	if heard == nil {
		return
	}
	if heard.hear(false, heard.hears.sink, []int{out}) {
		t.Error("it hears of the same as before, and does not say so")
	}
	_ = heard.Close()
	s.Run("ip link add other type veth peer name another")
	s.Run("ip link set other up")
	// What the kernel does later by itself is told of, too.
	s.until("the interfaces have settled", func() bool {
		links := s.Run("ip -o link")
		return strings.Count(links, "state UP") == 1 && strings.Count(links, "state LOWERLAYERDOWN") == 2 &&
			!strings.Contains(s.Run("ip -6 addr"), "tentative")
	})
	for name, test := range map[string]struct {
		silent  []string
		command string // which is heard first
		kind    int
		link    string
	}{
		"an interface": {[]string{"ip link set other mtu 1400"}, "ip link set out mtu 1400", unix.RTM_NEWLINK, "out"},
		"an address":   {[]string{"ip addr add 198.51.100.1/24 dev other"}, "ip addr add 198.51.100.2/24 dev out", unix.RTM_NEWADDR, "out"},
		"a route":      {[]string{"ip route add 203.0.113.9 dev " + sink}, "ip route del 203.0.113.9 dev " + sink, unix.RTM_DELROUTE, sink},
		"a route of IPv6": {
			[]string{"ip -6 route add 2001:db8:9::9 dev " + sink},
			"ip -6 route del 2001:db8:9::9 dev " + sink,
			unix.RTM_DELROUTE, sink,
		},
		"another route": {[]string{
			"ip route add 203.0.113.11 dev out", "ip route add 203.0.113.12 dev " + sink,
			"ip route replace 203.0.113.13 dev other",
		}, "ip route replace 203.0.113.12 dev out", unix.RTM_NEWROUTE, "out"},
		"another of IPv6": {
			[]string{"ip -6 route add 2001:db8:9::12 dev " + sink},
			"ip -6 route replace 2001:db8:9::12 dev out",
			unix.RTM_NEWROUTE, "out",
		},
		"a sysctl": {
			[]string{"sysctl -qw net.ipv4.conf.other.forwarding=0"},
			"sysctl -qw net.ipv4.conf.out.forwarding=0",
			unix.RTM_NEWNETCONF, "out",
		},
		"a sysctl of IPv6": {
			[]string{"sysctl -qw net.ipv6.conf.other.proxy_ndp=1"},
			"sysctl -qw net.ipv6.conf.all.proxy_ndp=1",
			unix.RTM_NEWNETCONF, "",
		},
		"the sink": {[]string{"ip route add 203.0.113.10 via 192.0.2.9", "ip route del 203.0.113.10"}, "ip link set " + sink +
			" mtu 1400", unix.RTM_NEWLINK, sink},
		"all of the others": {nil, "ip link set other mtu 1300", unix.RTM_NEWLINK, "other"},
	} {
		var heard *subscription
		want := -1
		s.Within(func() {
			sub, err := subscribe(slog.Default())
			if err != nil {
				t.Error(err)
				return
			}
			heard = sub
			heard.hear(test.link == "other", index(t, sink), []int{out})
			if test.link != "" {
				want = index(t, test.link)
			}
		})
		if heard == nil {
			return
		}
		for _, command := range append(test.silent, test.command) {
			s.Run(command)
		}
		_ = heard.SetReadDeadline(time.Now().Add(testnet.Patience))
		messages, err := heard.Receive()
		if err != nil || len(messages) != 1 || int(messages[0].Header.Type) != test.kind || about(messages[0]) != want {
			t.Errorf("%s: heard %v, %v; want a message of type %d about %d", name, messages, err, test.kind, want)
		}
		_ = heard.Close()
	}
}

// about is the index of the interface that a message of the kernel is about.
func about(m netlink.Message) int {
	header, kind := 0, uint16(0)
	switch m.Header.Type {
	case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
		header, kind = unix.SizeofRtMsg, unix.RTA_OIF
	case unix.RTM_NEWNETCONF:
		header, kind = 4, 1
	default:
		return int(binary.NativeEndian.Uint32(m.Data[4:]))
	}
	attributes, err := netlink.NewAttributeDecoder(m.Data[header:])
	if err != nil {
		return 0
	}
	for attributes.Next() {
		if attributes.Type() == kind {
			return int(attributes.Int32())
		}
	}
	return 0
}

// What two clusters of a machine need, and other programs, is not switched off when one of them
// goes. The last cluster restores it.
func TestOthersKeepWhatTheyNeed(t *testing.T) {
	second := func(s *segment, addresses ...netip.Addr) (stop func()) {
		_, stop = s.announceBy("coracle-lb2", "", addresses...)
		return stop
	}
	remove := func(s *segment, name string) {
		s.Within(func() {
			if err := Remove(name); err != nil {
				s.t.Error(err)
			}
		})
	}
	t.Run("another cluster", func(t *testing.T) {
		s := newSegment(t)
		before, left := s.settings(), s.left()
		_, stop := s.announce("", both...)
		s.saidBoth()
		stopSecond := second(s, other4, other6)
		s.said(other4.String()+" out", other6.String()+" out")
		during := s.settings()
		if during == before {
			t.Fatalf("nothing was set: %s", during)
		}
		stop()
		stopSecond() // a cluster whose process is being restarted
		remove(s, sink)
		if now := s.settings(); now != during {
			t.Errorf("with the other cluster still there, the settings are %s, and were %s", now, during)
		}
		s.answers(true, other4, other6)
		s.answers(false, both...)
		remove(s, "coracle-lb2")
		if now := s.left(); now != left {
			t.Errorf("left is\n%s\nwant\n%s", now, left)
		}
	})
	t.Run("another cluster without IPv6", func(t *testing.T) {
		s := newSegment(t)
		_, stop := s.announce("", both...)
		s.saidBoth()
		stopSecond := second(s, other4)
		s.said(other4.String() + " out")
		stop()
		stopSecond()
		remove(s, sink)
		if got := s.settings(); !strings.HasPrefix(got, "ndp=0 4=0 ") || strings.HasSuffix(got, "6=0") {
			t.Errorf("left is %s", got)
		}
	})
	t.Run("another program", func(t *testing.T) {
		s := newSegment(t)
		_, stop := s.announce("", both...)
		s.saidBoth()
		s.Run("ip -6 neigh add proxy " + other6.String() + " dev out")
		s.Run("ip route add " + other6.String() + " dev lo")
		s.answers(true, other6)
		stop()
		remove(s, sink)
		if got := s.settings(); !strings.HasPrefix(got, "ndp=1 ") {
			t.Errorf("another program's addresses of IPv6 are not answered for: %s", got)
		}
		// The kernel answers for it after a random delay again, and the machine outside gives up
		// soon.
		s.Run("sysctl -qw net.ipv6.neigh.out.proxy_delay=0")
		s.answers(true, other6)
	})
	t.Run("another program with its own sysctl", func(t *testing.T) {
		s := newSegment(t)
		s.Run("sysctl -qw net.ipv6.conf.out.proxy_ndp=1")
		s.Run("ip -6 neigh add proxy " + other6.String() + " dev out")
		_, stop := s.announce("", both...)
		s.saidBoth()
		stop()
		remove(s, sink)
		if got := s.settings(); !strings.HasPrefix(got, "ndp=0 ") {
			t.Errorf("a sysctl that no one needs is left: %s", got)
		}
	})
}

package announce

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/cluster/internal/testkit"
	"github.com/coracle-project/coracle/cluster/proxy/testnet"
)

// The announced addresses, others of the same networks, and the device.
var (
	announced4, announced6 = netip.MustParseAddr("192.0.2.50"), netip.MustParseAddr("2001:db8::50")
	other4, other6         = netip.MustParseAddr("192.0.2.51"), netip.MustParseAddr("2001:db8::51")
	both                   = []netip.Addr{announced4, announced6}
)

const sink = "coracle-lb1"

// segment is a node and another machine on one network.
type segment struct {
	*testnet.Node
	t   *testing.T
	mac string // of the node there
	// reports are what announcers have said, as "address interface" or "address error".
	reports chan string
	log     testkit.Log
}

func newSegment(t *testing.T) *segment {
	s := &segment{Node: testnet.New(t), t: t, reports: make(chan string, 100)}
	s.Within(func() {
		s.mac = macOf(t, "out")
	})
	s.Outside.Within(func() { // it gives up soon
		for _, family := range []string{"ipv4", "ipv6"} {
			write(t, family+"/neigh/eth0/retrans_time_ms", "100")
			write(t, family+"/neigh/eth0/locktime", "0") // and believes news at once
		}
	})
	return s
}

func write(t *testing.T, sysctl, value string) {
	t.Helper()
	if err := os.WriteFile("/proc/sys/net/"+sysctl, []byte(value), 0); err != nil {
		t.Error(err)
	}
}

func (s *segment) sysctl(name string) (value string) {
	s.t.Helper()
	s.Within(func() {
		var err error
		if value, err = readSysctl("/proc/sys/net/" + name); err != nil {
			s.t.Error(err)
		}
	})
	return value
}

// announce runs an announcer until the function it returns is called, or the test ends.
func (s *segment) announce(named string, addresses ...netip.Addr) (a *Announcer, stop func()) {
	s.t.Helper()
	return s.announceBy(sink, named, addresses...)
}

// announceBy does so with a sink of that name.
func (s *segment) announceBy(sink, named string, addresses ...netip.Addr) (a *Announcer, stop func()) {
	s.t.Helper()
	a = New(sink, named, s.log.Logger(), func(address netip.Addr, link string, err error) {
		if err != nil {
			link = err.Error()
		}
		s.reports <- address.String() + " " + link
	})
	a.Set(addresses)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go s.Within(func() { done <- a.Run(ctx) })
	ended := false
	stop = func() {
		if cancel(); ended {
			return
		}
		ended = true
		if err := <-done; err != nil {
			s.t.Error(err)
		}
	}
	s.t.Cleanup(stop)
	return a, stop
}

// said waits until each of these texts is in a report.
func (s *segment) said(texts ...string) {
	s.t.Helper()
	late := time.After(testnet.Patience)
	for len(texts) > 0 {
		select {
		case r := <-s.reports:
			texts = slices.DeleteFunc(texts, func(text string) bool { return strings.Contains(r, text) })
		case <-late:
			s.t.Fatalf("no report has %q", texts)
		}
	}
}

// saidBoth waits until the two addresses are announced on the node's interface.
func (s *segment) saidBoth() {
	s.t.Helper()
	s.said(announced4.String()+" out", announced6.String()+" out")
}

// neighbour returns what the machine outside knows of an address.
func (s *segment) neighbour(address netip.Addr) (found netlink.Neigh) {
	s.Outside.Within(func() {
		all, err := netlink.NeighList(0, family(address))
		if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
			s.t.Error(err)
		}
		for _, n := range all {
			if n.IP.Equal(address.AsSlice()) {
				found = n
			}
		}
	})
	return found
}

func family(address netip.Addr) int {
	if address.Is6() {
		return netlink.FAMILY_V6
	}
	return netlink.FAMILY_V4
}

// until waits for a condition of the kernel, which tells no one.
func (s *segment) until(what string, holds func() bool) {
	s.t.Helper()
	for deadline := time.Now().Add(testnet.Patience); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			s.t.Fatal("did not happen: " + what)
		}
	}
}

// resolve has the machine outside ask for an address, and returns who answers; "" for no one.
func (s *segment) resolve(address netip.Addr) string {
	s.t.Helper()
	s.Outside.Within(func() {
		// What it knew before does not count.
		err := netlink.NeighDel(&netlink.Neigh{LinkIndex: index(s.t, "eth0"), IP: address.AsSlice()})
		if err != nil && !errors.Is(err, unix.ENOENT) {
			s.t.Error(err)
		}
		conn, err := net.Dial("udp", netip.AddrPortFrom(address, 9).String())
		if err == nil {
			_, err = conn.Write([]byte("x"))
			_ = conn.Close()
		}
		if err != nil {
			s.t.Error(err)
		}
	})
	var n netlink.Neigh
	s.until(fmt.Sprintf("%s is asked for", address), func() bool {
		n = s.neighbour(address)
		return n.State&(netlink.NUD_REACHABLE|netlink.NUD_FAILED|netlink.NUD_STALE|netlink.NUD_DELAY|netlink.NUD_PROBE) != 0
	})
	if n.State == netlink.NUD_FAILED {
		return ""
	}
	return n.HardwareAddr.String()
}

func macOf(t *testing.T, name string) string {
	t.Helper()
	l, err := net.InterfaceByName(name)
	if err != nil {
		t.Error(err)
		return ""
	}
	return l.HardwareAddr.String()
}

func index(t *testing.T, name string) int {
	t.Helper()
	l, err := net.InterfaceByName(name)
	if err != nil {
		t.Error(err)
		return 0
	}
	return l.Index
}

// answers says whether the node answers for each of these addresses, or for none of them.
func (s *segment) answers(want bool, addresses ...netip.Addr) {
	s.t.Helper()
	for _, address := range addresses {
		mac := ""
		if want {
			mac = s.mac
		}
		if got := s.resolve(address); got != mac {
			s.t.Errorf("%s is at %q, want %q", address, got, mac)
		}
	}
}

// left is what the node has of announcements: devices, proxied neighbours, routes and sysctls.
func (s *segment) left() string {
	return s.Run("ip neigh show proxy") + s.Run("ip -6 neigh show proxy") + s.Run("ip -o link show type veth") + s.Run("ip route") +
		s.Run("ip -6 route") + s.Run("nft list tables") +
		s.sysctl("ipv6/conf/all/proxy_ndp") + " " + s.sysctl("ipv4/neigh/out/proxy_delay") + " " + s.sysctl("ipv6/neigh/out/proxy_delay")
}

// frames sends packets of Ethernet by an interface of a space.
func (s *segment) frames(link string, space *testnet.Space, all ...[]byte) {
	s.t.Helper()
	space.Within(func() {
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			s.t.Error(err)
			return
		}
		defer func() { _ = unix.Close(fd) }()
		to := unix.SockaddrLinklayer{Ifindex: index(s.t, link), Halen: 6}
		for _, frame := range all {
			if err := unix.Sendto(fd, frame, 0, &to); err != nil {
				s.t.Errorf("send %x: %v", frame, err)
				return
			}
		}
	})
}

// ethernet is an ARP packet in a frame to all.
func ethernet(arp []byte) []byte {
	return append([]byte{255, 255, 255, 255, 255, 255, 2, 0, 0, 0, 0, 0x66, 8, 6}, arp...)
}

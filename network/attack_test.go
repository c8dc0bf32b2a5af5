package network

import (
	"encoding/binary"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// A pod with CAP_NET_RAW tries to impersonate its neighbour. Each attack runs on the built-in
// network, where it must fail, and on a plain bridge, where it must succeed; otherwise the test
// proves nothing.

// party is a pod in an attack.
type party struct {
	netNS    string
	ip4, ip6 netip.Addr
	mac      net.HardwareAddr
}

// arena is a network with an attacker, the pod that it impersonates, and the pod that it deceives.
// The host is another victim.
type arena struct {
	attacker, neighbour, victim party
	host                        [2]netip.Addr // the pods' gateways
}

// routedArena has pods of the built-in network.
func routedArena(t *testing.T) arena {
	t.Helper()
	m := started(t, testConfig(t))
	var all [3]party
	for i := range all {
		p := connect(t, m, fmt.Sprint("p", i))
		all[i] = party{p.NetNS, p.ips[0], p.ips[1], macOf(p.ips[0])}
	}
	return arena{all[0], all[1], all[2], [2]netip.Addr{m.builtin.pools[0].gateway(), m.builtin.pools[1].gateway()}}.connected(t)
}

// connected waits until all is connected: a link sends a moment after it has come up, and a
// bridge's port forwards even later.
func (a arena) connected(t *testing.T) arena {
	t.Helper()
	serve(t, a.victim.netNS, "victim", "tcp", 7)
	for _, p := range []party{a.attacker, a.neighbour} {
		expect(t, "before the attack", p.netNS, "tcp", a.victim.ip4, 7, "victim "+p.ip4.String())
		expect(t, "before the attack", p.netNS, "tcp", a.victim.ip6, 7, "victim "+p.ip6.String())
	}
	serve(t, a.neighbour.netNS, "neighbour", "tcp", 8)
	for _, from := range []string{"", a.victim.netNS} {
		for _, ip := range []netip.Addr{a.neighbour.ip4, a.neighbour.ip6} {
			if got, err := ask(t, from, "tcp", ip, 8, patience); err != nil {
				t.Errorf("before the attack: %q, %v", got, err)
			}
		}
	}
	if t.Failed() {
		t.FailNow()
	}
	return a
}

// plainArena has namespaces on a bridge without any protection, and the host on it, too.
func plainArena(t *testing.T) arena {
	t.Helper()
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	must(t, err)
	t.Cleanup(h.Close)
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "plain0"
	must(t, h.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}))
	br, err := h.LinkByName("plain0")
	must(t, err)
	t.Cleanup(func() { must(t, netlink.LinkDel(br)) })
	host := [2]netip.Addr{netip.MustParseAddr("10.99.0.1"), netip.MustParseAddr("fd99::1")}
	must(t, h.AddrAdd(br, &netlink.Addr{IPNet: ipNet(host[0], 24)}))
	must(t, h.AddrAdd(br, &netlink.Addr{IPNet: ipNet(host[1], 64), Flags: unix.IFA_F_NODAD}))
	must(t, setSysctl("ipv6/conf/plain0/accept_ra", "2")) // the host forwards
	must(t, setSysctl("ipv4/neigh/plain0/locktime", "0"))
	must(t, h.LinkSetUp(br))
	var all [3]party
	for i := range all {
		p := party{ip4: netip.AddrFrom4([4]byte{10, 99, 0, byte(10 + i)}), ip6: netip.MustParseAddr(fmt.Sprintf("fd99::%d", 10+i))}
		p.mac = macOf(p.ip4)
		p.netNS, _ = newNetNS(t)
		ns, err := openNetns(p.netNS)
		must(t, err)
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.MasterIndex = fmt.Sprint("plain", i+1), br.Attrs().Index
		must(t, h.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: podIf, PeerNamespace: netlink.NsFd(ns.Fd()), PeerHardwareAddr: p.mac}))
		port, err := h.LinkByName(attrs.Name)
		must(t, err)
		must(t, h.LinkSetUp(port))
		t.Cleanup(func() { must(t, netlink.LinkDel(port)) }) // the namespace ends later
		there, err := netlink.NewHandleAt(netns.NsHandle(ns.Fd()), unix.NETLINK_ROUTE)
		must(t, err)
		eth, err := there.LinkByName(podIf)
		must(t, err)
		must(t, there.AddrAdd(eth, &netlink.Addr{IPNet: ipNet(p.ip4, 24)}))
		must(t, there.AddrAdd(eth, &netlink.Addr{IPNet: ipNet(p.ip6, 64), Flags: unix.IFA_F_NODAD}))
		must(t, there.LinkSetUp(eth))
		there.Close()
		ns.Close()
		all[i] = p
	}
	return arena{all[0], all[1], all[2], host}.connected(t)
}

// frame is an Ethernet frame.
func frame(dst, src net.HardwareAddr, proto uint16, payload []byte) []byte {
	return append(binary.BigEndian.AppendUint16(slices.Concat(dst, src), proto), payload...)
}

// sum is the checksum of the Internet protocols (RFC 1071).
func sum(parts ...[]byte) uint16 {
	all := slices.Concat(parts...)
	if len(all)%2 == 1 {
		all = append(all, 0)
	}
	var s uint32
	for i := 0; i < len(all); i += 2 {
		s += uint32(binary.BigEndian.Uint16(all[i:]))
	}
	for s > 0xffff {
		s = s>>16 + s&0xffff
	}
	return ^uint16(s)
}

// packet is an IP packet with a checksum where its payload has room for one.
func packet(src, dst netip.Addr, proto byte, hops byte, payload []byte, checksumAt int) []byte {
	payload = slices.Clone(payload)
	pseudo := slices.Concat(src.AsSlice(), dst.AsSlice(), binary.BigEndian.AppendUint32(nil, uint32(len(payload))), []byte{0, 0, 0, proto})
	binary.BigEndian.PutUint16(payload[checksumAt:], sum(pseudo, payload))
	if src.Is6() {
		h := []byte{0x60, 0, 0, 0}
		h = append(binary.BigEndian.AppendUint16(h, uint16(len(payload))), proto, hops)
		return slices.Concat(h, src.AsSlice(), dst.AsSlice(), payload)
	}
	h := binary.BigEndian.AppendUint16([]byte{0x45, 0}, uint16(20+len(payload)))
	h = slices.Concat(h, []byte{0, 1, 0, 0, hops, proto, 0, 0}, src.AsSlice(), dst.AsSlice())
	binary.BigEndian.PutUint16(h[10:], sum(h))
	return append(h, payload...)
}

func udp(src, dst netip.Addr, port uint16, data string) []byte {
	b := binary.BigEndian.AppendUint16([]byte{0x30, 0x39}, port)
	b = binary.BigEndian.AppendUint16(b, uint16(8+len(data)))
	return packet(src, dst, unix.IPPROTO_UDP, 64, append(append(b, 0, 0), data...), 6)
}

// sendFrames sends from a pod's link as they are.
func sendFrames(t *testing.T, p party, frames ...[]byte) {
	t.Helper()
	sendFramesBy(t, p, podIf, frames...)
}

func sendFramesBy(t *testing.T, p party, link string, frames ...[]byte) {
	t.Helper()
	must(t, within(t, p.netNS, func() error {
		link, err := net.InterfaceByName(link)
		if err != nil {
			return err
		}
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		for _, f := range frames {
			if err := unix.Sendto(fd, f, 0, &unix.SockaddrLinklayer{Ifindex: link.Index}); err != nil {
				return err
			}
		}
		return nil
	}))
}

// nextHopMAC is where a pod's frames to other pods go: to its gateway or, on a plain bridge, to the
// other pod.
func nextHopMAC(t *testing.T, p, to party) net.HardwareAddr {
	t.Helper()
	var mac net.HardwareAddr
	must(t, within(t, p.netNS, func() error {
		all, err := netlink.NeighList(0, netlink.FAMILY_V4)
		for _, n := range all {
			if n.IP.Equal(to.ip4.AsSlice()) || n.State == netlink.NUD_PERMANENT {
				mac = n.HardwareAddr
			}
		}
		return err
	}))
	if mac == nil {
		t.Fatalf("%s knows no way to %s", p.ip4, to.ip4)
	}
	return mac
}

// targets are a socket of the victim and one of the host, with what a packet to them must have.
type target struct {
	name, netNS string
	ip          netip.Addr
}

func (a arena) targets(v6 bool) []target {
	if v6 {
		return []target{{"victim", a.victim.netNS, a.victim.ip6}, {"host", "", a.host[1]}}
	}
	return []target{{"victim", a.victim.netNS, a.victim.ip4}, {"host", "", a.host[0]}}
}

// arrives sends what forge makes to the victim and to the host, and returns to whom it came. An
// honest packet after it, which is repeated until it comes, shows that there was a way.
func arrives(t *testing.T, a arena, v6 bool,
	forge func(own, dst netip.Addr, port uint16) (src net.HardwareAddr, packets [][]byte),
) outcome {
	t.Helper()
	own, network, proto := a.attacker.ip4, "udp4", uint16(unix.ETH_P_IP)
	if v6 {
		own, network, proto = a.attacker.ip6, "udp6", unix.ETH_P_IPV6
	}
	won := outcome{}
	for _, to := range a.targets(v6) {
		var l net.PacketConn
		must(t, within(t, to.netNS, func() (err error) { l, err = net.ListenPacket(network, ":0"); return err }))
		defer l.Close()
		port := netip.MustParseAddrPort(l.LocalAddr().String()).Port()
		hop := nextHopMAC(t, a.attacker, a.victim)
		if to.name == "host" {
			hop = hostMAC
			if br, err := netlink.LinkByName("plain0"); err == nil {
				hop = br.Attrs().HardwareAddr
			}
		}
		src, packets := forge(own, to.ip, port)
		var frames [][]byte
		for _, p := range packets {
			frames = append(frames, frame(hop, src, proto, p))
		}
		sendFrames(t, a.attacker, frames...)
		buf := make([]byte, 1000)
		for honest := 0; honest < 2; { // the second one shows that nothing is left on the way
			sendFrames(t, a.attacker, frame(hop, a.attacker.mac, proto, udp(own, to.ip, port, "honest")))
			must(t, l.SetReadDeadline(time.Now().Add(patience)))
			n, _, err := l.ReadFrom(buf)
			must(t, err)
			switch string(buf[:n]) {
			case "honest":
				honest++
			case "forged":
				won[to.name] = true
			}
		}
	}
	return won
}

// outcome says whom an attack has deceived.
type outcome map[string]bool

var broadcast = net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

// multicastMAC is that of an IPv6 group (RFC 2464, 7).
func multicastMAC(group netip.Addr) net.HardwareAddr {
	return append(net.HardwareAddr{0x33, 0x33}, group.AsSlice()[12:]...)
}

// from forges packets with a source that is not the attacker's.
func from(v6 bool, source func(a arena) netip.Addr) func(*testing.T, arena) outcome {
	return func(t *testing.T, a arena) outcome {
		t.Helper()
		return arrives(t, a, v6, func(_, dst netip.Addr, port uint16) (net.HardwareAddr, [][]byte) {
			return a.attacker.mac, [][]byte{udp(source(a), dst, port, "forged")}
		})
	}
}

var allNodes = netip.MustParseAddr("ff02::1")

// Each attack returns whom it has deceived.
var attacks = map[string]func(t *testing.T, a arena) outcome{
	"source: a neighbour, IPv4": from(false, func(a arena) netip.Addr { return a.neighbour.ip4 }),
	"source: a neighbour, IPv6": from(true, func(a arena) netip.Addr { return a.neighbour.ip6 }),
	"source: of the range, IPv4": from(false, func(a arena) netip.Addr {
		return a.victim.ip4.Next().Next()
	}),
	"hardware address": func(t *testing.T, a arena) outcome {
		t.Helper()
		return arrives(t, a, false, func(own, dst netip.Addr, port uint16) (net.HardwareAddr, [][]byte) {
			return a.neighbour.mac, [][]byte{udp(own, dst, port, "forged")}
		})
	},
	"ARP, of a neighbour": func(t *testing.T, a arena) outcome {
		t.Helper()
		return misleads(t, a, a.neighbour.ip4, arpReply(a, a.neighbour.ip4))
	},
	"ARP, of the gateway": func(t *testing.T, a arena) outcome {
		t.Helper()
		return misleads(t, a, a.host[0], arpReply(a, a.host[0]))
	},
	"neighbour advertisement, of a neighbour": func(t *testing.T, a arena) outcome {
		t.Helper()
		return misleads(t, a, a.neighbour.ip6, advertisement(a, a.neighbour.ip6))
	},
	"neighbour advertisement, of the gateway": func(t *testing.T, a arena) outcome {
		t.Helper()
		return misleads(t, a, a.host[1], advertisement(a, a.host[1]))
	},
	"router advertisement": func(t *testing.T, a arena) outcome {
		t.Helper()
		body := []byte{134, 0, 0, 0, 64, 0, 0x07, 0x08, 0, 0, 0, 0, 0, 0, 0, 0} // a default router for half an hour
		body = slices.Concat(body, []byte{1, 1}, a.attacker.mac)
		router := netip.MustParseAddr("fe80::bad")
		forged := frame(multicastMAC(allNodes), a.attacker.mac, unix.ETH_P_IPV6, packet(router, allNodes, unix.IPPROTO_ICMPV6, 255, body, 2))
		return after(t, a, forged, func(won outcome) {
			for _, to := range a.targets(true) {
				must(t, within(t, to.netNS, func() error {
					routes, err := netlink.RouteList(nil, netlink.FAMILY_V6)
					for _, r := range routes {
						won[to.name] = won[to.name] || r.Gw.Equal(router.AsSlice())
					}
					return err
				}))
			}
		})
	},
}

func arpReply(a arena, claimed netip.Addr) []byte {
	body := slices.Concat([]byte{0, 1, 8, 0, 6, 4, 0, 2}, a.attacker.mac, claimed.AsSlice(), a.victim.mac, a.victim.ip4.AsSlice())
	return frame(broadcast, a.attacker.mac, unix.ETH_P_ARP, body)
}

func advertisement(a arena, claimed netip.Addr) []byte {
	body := slices.Concat([]byte{136, 0, 0, 0, 0x20, 0, 0, 0}, claimed.AsSlice(), []byte{2, 1}, a.attacker.mac) // overrides
	return frame(multicastMAC(allNodes), a.attacker.mac, unix.ETH_P_IPV6, packet(a.attacker.ip6, allNodes, unix.IPPROTO_ICMPV6, 255, body, 2))
}

// misleads sends a frame, and returns who takes the attacker for the owner of an address then. The
// host has no entry for its own.
func misleads(t *testing.T, a arena, claimed netip.Addr, forged []byte) outcome {
	t.Helper()
	must(t, within(t, a.victim.netNS, func() error {
		return setSysctl("ipv4/neigh/"+podIf+"/locktime", "0") // the kernel takes no two answers within a second
	}))
	// So that there is an entry to change.
	for i, host := range a.host {
		serve(t, "", "host", "tcp", uint16(100+i))
		if _, err := ask(t, a.victim.netNS, "tcp", host, uint16(100+i), patience); err != nil {
			t.Fatal(err)
		}
	}
	return after(t, a, forged, func(won outcome) {
		for _, to := range a.targets(false) {
			must(t, within(t, to.netNS, func() error {
				all, err := netlink.NeighList(0, netlink.FAMILY_ALL)
				for _, n := range all {
					won[to.name] = won[to.name] || n.IP.Equal(claimed.AsSlice()) && slices.Equal(n.HardwareAddr, a.attacker.mac)
				}
				return err
			}))
		}
	})
}

// after sends a frame again and again, as attackers do, since the kernel ignores an answer that
// comes in the same tick as another. Then the victim and the host answer an honest request, and it
// looks at what has become of them.
func after(t *testing.T, a arena, forged []byte, look func(outcome)) outcome {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for range 5 {
		sendFrames(t, a.attacker, forged)
		<-tick.C
	}
	serve(t, a.victim.netNS, "victim", "tcp", 9)
	serve(t, "", "host", "tcp", 10)
	expect(t, "after the attack", a.attacker.netNS, "tcp", a.victim.ip4, 9, "victim "+a.attacker.ip4.String())
	expect(t, "after the attack", a.attacker.netNS, "tcp", a.host[0], 10, "host "+a.attacker.ip4.String())
	won := outcome{}
	look(won)
	return won
}

func TestAttacksOnNeighbours(t *testing.T) {
	for name, attack := range attacks {
		t.Run(name, func(t *testing.T) {
			t.Run("plain bridge", func(t *testing.T) {
				want := []string{"host", "victim"}
				if strings.HasSuffix(name, "gateway") { // the host itself
					want = want[1:]
				}
				if won := attack(t, plainArena(t)); !slices.Equal(won.names(), want) {
					t.Errorf("without protection, the attack deceives %v instead of %v, so it proves nothing", won.names(), want)
				}
			})
			t.Run("built-in network", func(t *testing.T) {
				if won := attack(t, routedArena(t)); len(won.names()) > 0 {
					t.Errorf("the attack deceives %v", won.names())
				}
			})
		})
	}
}

func (o outcome) names() []string {
	maps.DeleteFunc(o, func(_ string, won bool) bool { return !won })
	return slices.Sorted(maps.Keys(o))
}

// fragments is a packet in two parts.
func fragments(src, dst netip.Addr, id uint16, payload []byte) (first, second []byte) {
	part := func(offset int, more uint16, b []byte) []byte {
		h := binary.BigEndian.AppendUint16([]byte{0x45, 0}, uint16(20+len(b)))
		h = binary.BigEndian.AppendUint16(h, id)
		h = binary.BigEndian.AppendUint16(h, more|uint16(offset/8))
		h = slices.Concat(h, []byte{64, unix.IPPROTO_UDP, 0, 0}, src.AsSlice(), dst.AsSlice())
		binary.BigEndian.PutUint16(h[10:], sum(h))
		return append(h, b...)
	}
	const moreFragments = 0x2000
	return part(0, moreFragments, payload[:16]), part(16, 0, payload[16:])
}

// A pod sends the second half of its neighbour's packet before the neighbour does.
func TestForgedFragment(t *testing.T) {
	for name, c := range map[string]struct {
		arena func(*testing.T) arena
		want  string
	}{"plain bridge": {plainArena, "forged--"}, "built-in network": {routedArena, "genuine-"}} {
		t.Run(name, func(t *testing.T) {
			a := c.arena(t)
			var l net.PacketConn
			must(t, within(t, a.victim.netNS, func() (err error) { l, err = net.ListenPacket("udp4", ":0"); return err }))
			defer l.Close()
			port := netip.MustParseAddrPort(l.LocalAddr().String()).Port()
			datagram := func(data string) []byte {
				b := binary.BigEndian.AppendUint16([]byte{0x30, 0x39}, port)
				b = binary.BigEndian.AppendUint16(b, uint16(8+len(data)))
				return append(append(b, 0, 0), data...) // no checksum
			}
			const head = "12345678"
			_, forged := fragments(a.neighbour.ip4, a.victim.ip4, 7777, datagram(head+"forged--"))
			first, second := fragments(a.neighbour.ip4, a.victim.ip4, 7777, datagram(head+"genuine-"))
			hop := nextHopMAC(t, a.attacker, a.victim)
			// The answer shows that the first frame has been taken, or dropped, by then.
			after(t, a, frame(hop, a.attacker.mac, unix.ETH_P_IP, forged), func(outcome) {})
			sendFrames(t, a.neighbour, frame(hop, a.neighbour.mac, unix.ETH_P_IP, first), frame(hop, a.neighbour.mac, unix.ETH_P_IP, second))
			must(t, l.SetReadDeadline(time.Now().Add(patience)))
			buf := make([]byte, 100)
			n, _, err := l.ReadFrom(buf)
			if got := string(buf[:n]); err != nil || got != head+c.want {
				t.Errorf("the victim got %q, %v, want %q", got, err, head+c.want)
			}
		})
	}
}

// A pod that is being torn down can send nothing more, even while its namespace is there.
func TestTornDownPodIsSilent(t *testing.T) {
	m := started(t, testConfig(t))
	m.builtin.linger = patience
	path, end := newNetNS(t)
	r, err := m.Setup(t.Context(), Pod{ID: "a", NetNS: path})
	must(t, err)
	serve(t, "", "host", "tcp", 9000)
	gw := m.builtin.pools[0].gateway()
	expect(t, "before", path, "tcp", gw, 9000, "host "+r.IPs[0].String())
	must(t, m.Teardown(t.Context(), Pod{ID: "a"}))
	expectNone(t, "after", path, "tcp", gw, 9000)
	end()
	must(t, m.Flush(t.Context()))
}

// What a pod sends before it has an address, or on its link alone, reaches the host: BOOTP and
// DHCPv6.
func TestPodsSpeakOnTheirLink(t *testing.T) {
	m := started(t, testConfig(t))
	p := connect(t, m, "a")
	a := party{netNS: p.NetNS, mac: macOf(p.ip4())}
	hears := func(l net.PacketConn, frames ...[]byte) {
		t.Helper()
		defer l.Close()
		buf := make([]byte, 100)
		for end := time.Now().Add(patience); ; {
			sendFrames(t, a, frames...) // again, since a link sends a moment after it has come up
			must(t, l.SetReadDeadline(time.Now().Add(silence)))
			n, _, err := l.ReadFrom(buf)
			if got := string(buf[:n]); err == nil && got == "discover" {
				return
			} else if time.Now().After(end) {
				t.Fatalf("the host heard %q, %v", got, err)
			}
		}
	}
	bootp, err := net.ListenPacket("udp4", ":67")
	must(t, err)
	hears(bootp, frame(broadcast, a.mac, unix.ETH_P_IP, udp(netip.IPv4Unspecified(), netip.MustParseAddr("255.255.255.255"), 67, "discover")))
	link, err := net.InterfaceByName(vethName("a"))
	must(t, err)
	servers := netip.MustParseAddr("ff02::1:2")
	dhcp, err := net.ListenMulticastUDP("udp6", link, &net.UDPAddr{IP: servers.AsSlice(), Port: 547})
	must(t, err)
	hears(dhcp, frame(multicastMAC(servers), a.mac, unix.ETH_P_IPV6, udp(netip.MustParseAddr("fe80::1234"), servers, 547, "discover")))
}

// A machine on the LAN sends packets with a pod's source address, to a pod that knows that one, and
// to the host.
func TestLANCannotBeAPod(t *testing.T) {
	out := newOutside(t)
	m := started(t, testConfig(t))
	a, b := connect(t, m, "a"), connect(t, m, "b")
	uplink, err := netlink.LinkByName("uplink")
	must(t, err)
	for i, network := range []string{"udp4", "udp6"} {
		host, proto := []netip.Addr{hostOut4, hostOut6}[i], []uint16{unix.ETH_P_IP, unix.ETH_P_IPV6}[i]
		var pod, own net.PacketConn
		must(t, within(t, b.NetNS, func() (err error) { pod, err = net.ListenPacket(network, ":0"); return err }))
		defer pod.Close()
		own, err := net.ListenPacket(network, ":0")
		must(t, err)
		defer own.Close()
		port := func(l net.PacketConn) uint16 { return netip.MustParseAddrPort(l.LocalAddr().String()).Port() }
		next := func(l net.PacketConn) string {
			must(t, l.SetReadDeadline(time.Now().Add(patience)))
			buf := make([]byte, 100)
			n, _, err := l.ReadFrom(buf)
			must(t, err)
			return string(buf[:n])
		}
		// The two pods know each other.
		var s net.PacketConn
		must(t, within(t, a.NetNS, func() (err error) { s, err = net.ListenPacket(network, ":12345"); return err }))
		defer s.Close()
		send := func(to netip.AddrPort, text string) {
			_, err := s.WriteTo([]byte(text), net.UDPAddrFromAddrPort(to))
			must(t, err)
		}
		acquainted := func() bool {
			send(netip.AddrPortFrom(b.ips[i], port(pod)), "first")
			must(t, pod.SetReadDeadline(time.Now().Add(silence)))
			_, from, err := pod.ReadFrom(make([]byte, 100))
			if err != nil {
				return false
			}
			_, err = pod.WriteTo([]byte("answer"), from)
			must(t, err)
			must(t, s.SetReadDeadline(time.Now().Add(silence)))
			_, _, err = s.ReadFrom(make([]byte, 100))
			return err == nil
		}
		for end := time.Now().Add(patience); !acquainted(); { // again, since a link sends a moment after it has come up
			if time.Now().After(end) {
				t.Fatalf("%s: the pods do not hear each other", network)
			}
		}
		lan := party{netNS: out, mac: net.HardwareAddr{2, 0, 0, 0, 0, 9}}
		sendFramesBy(t, lan, "out",
			frame(uplink.Attrs().HardwareAddr, lan.mac, proto, udp(a.ips[i], b.ips[i], port(pod), "forged")),
			frame(uplink.Attrs().HardwareAddr, lan.mac, proto, udp(a.ips[i], host, port(own), "forged")))
		// Something that the host answers after the frames.
		serve(t, "", "host", "tcp", uint16(9000+i))
		expect(t, "LAN to host", out, "tcp", host, uint16(9000+i), "host "+[]netip.Addr{outside4, outside6}[i].String())
		send(netip.AddrPortFrom(b.ips[i], port(pod)), "honest")
		send(netip.AddrPortFrom(host, port(own)), "honest")
		for what, l := range map[string]net.PacketConn{"pod": pod, "host": own} {
			got := next(l)
			for got == "first" { // it was late
				got = next(l)
			}
			if got != "honest" {
				t.Errorf("%s: the %s got %q", network, what, got)
			}
		}
	}
}

// A machine on the LAN that uses the host as its router reaches pods only if AllowFrom has its
// range.
func TestNeighboursOnTheLAN(t *testing.T) {
	for _, allowed := range []bool{false, true} {
		t.Run(fmt.Sprintf("allowed=%t", allowed), func(t *testing.T) {
			out := newOutside(t)
			c := testConfig(t)
			if allowed {
				c.AllowFrom = []netip.Prefix{netip.PrefixFrom(outside4, 24), netip.PrefixFrom(outside6, 64)}
			}
			m := started(t, c)
			a := connect(t, m, "a")
			serve(t, a.NetNS, "a", "tcp", 80)
			serve(t, out, "out", "tcp", 80)
			must(t, within(t, out, func() error {
				for i, via := range []netip.Addr{hostOut4, hostOut6} {
					s := m.builtin.subnets()[i]
					if err := netlink.RouteAdd(&netlink.Route{Dst: ipNet(s.Addr(), s.Bits()), Gw: via.AsSlice()}); err != nil {
						return err
					}
				}
				return nil
			}))
			for i, from := range []netip.Addr{outside4, outside6} {
				expect(t, "pod to LAN", a.NetNS, "tcp", from, 80, "out "+[]netip.Addr{hostOut4, hostOut6}[i].String())
				if allowed {
					expect(t, "LAN to pod", out, "tcp", a.ips[i], 80, "a "+from.String())
				} else {
					expectNone(t, "LAN to pod", out, "tcp", a.ips[i], 80)
				}
			}
		})
	}
}

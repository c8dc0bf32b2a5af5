package network

import (
	"encoding/binary"
	"fmt"
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

// A pod with CAP_NET_RAW tries to pass for its neighbour. Each attack is tried on the built-in network, where it must fail,
// and on a plain bridge, where it must succeed: else it would prove nothing.

// party is a pod in an attack.
type party struct {
	netNS    string
	ip4, ip6 netip.Addr
	mac      net.HardwareAddr
}

// arena is a network with an attacker, the one that it wants to pass for, and the one that it wants to deceive.
type arena struct{ attacker, neighbour, victim party }

// routedArena has pods of the built-in network.
func routedArena(t *testing.T) arena {
	t.Helper()
	m := started(t, testConfig(t))
	var all [3]party
	for i := range all {
		p := connect(t, m, fmt.Sprint("p", i))
		all[i] = party{p.NetNS, p.ips[0], p.ips[1], macOf(p.ips[0])}
	}
	return arena{all[0], all[1], all[2]}.working(t)
}

// working waits until all is connected: a link sends a moment after it has come up, and a bridge's port forwards even later.
func (a arena) working(t *testing.T) arena {
	t.Helper()
	serve(t, a.victim.netNS, "victim", "tcp", 7)
	for _, p := range []party{a.attacker, a.neighbour} {
		expect(t, "before the attack", p.netNS, "tcp", a.victim.ip4, 7, "victim "+p.ip4.String())
		expect(t, "before the attack", p.netNS, "tcp", a.victim.ip6, 7, "victim "+p.ip6.String())
	}
	return a
}

// plainArena has namespaces on a bridge without any protection, with the host's address on it as their gateway.
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
	return arena{all[0], all[1], all[2]}.working(t)
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
	must(t, within(t, p.netNS, func() error {
		link, err := net.InterfaceByName(podIf)
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

// gatewayMAC is whom a pod's frames to other pods go to: its gateway or, on a plain bridge, the other pod.
func gatewayMAC(t *testing.T, p, to party) net.HardwareAddr {
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

// arrives sends a frame of the attacker's, and then an honest packet, and reports whether the first one came to the victim.
func arrives(t *testing.T, a arena, v6 bool, forge func(to net.HardwareAddr, from, dst netip.Addr, port uint16) []byte) bool {
	t.Helper()
	own, dst, network := a.attacker.ip4, a.victim.ip4, "udp4"
	if v6 {
		own, dst, network = a.attacker.ip6, a.victim.ip6, "udp6"
	}
	var l net.PacketConn
	must(t, within(t, a.victim.netNS, func() (err error) { l, err = net.ListenPacket(network, ":0"); return err }))
	defer l.Close()
	port := netip.MustParseAddrPort(l.LocalAddr().String()).Port()
	to := gatewayMAC(t, a.attacker, a.victim)
	proto := uint16(unix.ETH_P_IP)
	if v6 {
		proto = unix.ETH_P_IPV6
	}
	sendFrames(t, a.attacker, forge(to, own, dst, port), frame(to, a.attacker.mac, proto, udp(own, dst, port, "honest")))
	must(t, l.SetReadDeadline(time.Now().Add(patience)))
	buf := make([]byte, 100)
	n, _, err := l.ReadFrom(buf)
	must(t, err)
	return string(buf[:n]) == "forged"
}

// reaches reports whether a connection from a pod ends at the neighbour itself.
func reaches(t *testing.T, a arena, from string) bool {
	t.Helper()
	got, err := ask(t, from, "tcp", a.neighbour.ip4, 8, silence)
	if err != nil {
		return false
	}
	got6, err := ask(t, from, "tcp", a.neighbour.ip6, 8, silence)
	return err == nil && strings.HasPrefix(got, "neighbour ") && strings.HasPrefix(got6, "neighbour ")
}

var broadcast = net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

// multicastMAC is that of an IPv6 group (RFC 2464, 7).
func multicastMAC(group netip.Addr) net.HardwareAddr {
	return append(net.HardwareAddr{0x33, 0x33}, group.AsSlice()[12:]...)
}

// Each attack reports whether it has won.
var attacks = map[string]func(t *testing.T, a arena) bool{
	"source address, IPv4": func(t *testing.T, a arena) bool {
		t.Helper()
		return arrives(t, a, false, func(to net.HardwareAddr, _, dst netip.Addr, port uint16) []byte {
			return frame(to, a.attacker.mac, unix.ETH_P_IP, udp(a.neighbour.ip4, dst, port, "forged"))
		})
	},
	"source address, IPv6": func(t *testing.T, a arena) bool {
		t.Helper()
		return arrives(t, a, true, func(to net.HardwareAddr, _, dst netip.Addr, port uint16) []byte {
			return frame(to, a.attacker.mac, unix.ETH_P_IPV6, udp(a.neighbour.ip6, dst, port, "forged"))
		})
	},
	"hardware address": func(t *testing.T, a arena) bool {
		t.Helper()
		return arrives(t, a, false, func(to net.HardwareAddr, from, dst netip.Addr, port uint16) []byte {
			return frame(to, a.neighbour.mac, unix.ETH_P_IP, udp(from, dst, port, "forged"))
		})
	},
	"ARP": func(t *testing.T, a arena) bool {
		t.Helper()
		body := []byte{0, 1, 8, 0, 6, 4, 0, 2} // a reply
		body = slices.Concat(body, a.attacker.mac, a.neighbour.ip4.AsSlice(), a.victim.mac, a.victim.ip4.AsSlice())
		return misleads(t, a, frame(broadcast, a.attacker.mac, unix.ETH_P_ARP, body))
	},
	"neighbour advertisement": func(t *testing.T, a arena) bool {
		t.Helper()
		body := []byte{136, 0, 0, 0, 0x20, 0, 0, 0} // overrides
		body = slices.Concat(body, a.neighbour.ip6.AsSlice(), []byte{2, 1}, a.attacker.mac)
		all := netip.MustParseAddr("ff02::1")
		return misleads(t, a, frame(multicastMAC(all), a.attacker.mac, unix.ETH_P_IPV6, packet(a.attacker.ip6, all, unix.IPPROTO_ICMPV6, 255, body, 2)))
	},
	"router advertisement": func(t *testing.T, a arena) bool {
		t.Helper()
		body := []byte{134, 0, 0, 0, 64, 0, 0x07, 0x08, 0, 0, 0, 0, 0, 0, 0, 0} // a default router for half an hour
		body = slices.Concat(body, []byte{1, 1}, a.attacker.mac)
		all, from := netip.MustParseAddr("ff02::1"), netip.MustParseAddr("fe80::bad")
		f := frame(multicastMAC(all), a.attacker.mac, unix.ETH_P_IPV6, packet(from, all, unix.IPPROTO_ICMPV6, 255, body, 2))
		return comes(t, a, f, func() bool {
			won := false
			for _, netNS := range []string{"", a.victim.netNS} {
				must(t, within(t, netNS, func() error {
					routes, err := netlink.RouteList(nil, netlink.FAMILY_V6)
					for _, r := range routes {
						won = won || r.Gw.Equal(from.AsSlice())
					}
					return err
				}))
			}
			return won
		})
	},
}

// misleads sends a frame, and reports whether what the victim, or the host, sends to the neighbour no longer gets there.
func misleads(t *testing.T, a arena, forged []byte) bool {
	t.Helper()
	serve(t, a.neighbour.netNS, "neighbour", "tcp", 8)
	must(t, within(t, a.victim.netNS, func() error {
		return setSysctl("ipv4/neigh/"+podIf+"/locktime", "0") // the kernel takes no two answers within a second
	}))
	if !reaches(t, a, a.victim.netNS) {
		t.Fatal("the victim does not reach its neighbour before the attack")
	}
	return comes(t, a, forged, func() bool {
		won := false
		for _, netNS := range []string{"", a.victim.netNS} {
			must(t, within(t, netNS, func() error {
				all, err := netlink.NeighList(0, netlink.FAMILY_ALL)
				for _, n := range all {
					ours := n.IP.Equal(a.neighbour.ip4.AsSlice()) || n.IP.Equal(a.neighbour.ip6.AsSlice())
					won = won || ours && slices.Equal(n.HardwareAddr, a.attacker.mac)
				}
				return err
			}))
		}
		return won || !reaches(t, a, a.victim.netNS)
	})
}

// comes sends a frame, then an honest packet that the victim answers, and reports whether the attack has won by then.
func comes(t *testing.T, a arena, forged []byte, won func() bool) bool {
	t.Helper()
	sendFrames(t, a.attacker, forged)
	serve(t, a.victim.netNS, "honest", "tcp", 9)
	expect(t, "after the attack", a.attacker.netNS, "tcp", a.victim.ip4, 9, "honest "+a.attacker.ip4.String())
	return won()
}

func TestAttacksOnNeighbours(t *testing.T) {
	for name, attack := range attacks {
		t.Run(name, func(t *testing.T) {
			t.Run("plain bridge", func(t *testing.T) {
				if !attack(t, plainArena(t)) {
					t.Error("the attack does not win where nothing keeps it from that, so it shows nothing")
				}
			})
			t.Run("built-in network", func(t *testing.T) {
				if attack(t, routedArena(t)) {
					t.Error("the attack wins")
				}
			})
		})
	}
}

// A neighbour of the host on the LAN takes the host for a router, to pods and to the other side of its uplinks.
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

package announce

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// send tells the segment of an interface that an address is at this machine.
func send(address netip.Addr, l link) error {
	if len(l.mac) != 6 {
		return fmt.Errorf("interface %s has no Ethernet address", l.name)
	}
	if address.Is4() {
		return sendARP(address, l)
	}
	return sendNA(address, l)
}

var broadcast = []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

// sendARP broadcasts the two forms of gratuitous ARP (RFC 5227 section 3): some devices take notice
// of requests only, some of replies. The socket is of no protocol, so it gets no packets.
func sendARP(address netip.Addr, l link) error {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("open packet socket: %w", err)
	}
	defer func() { _ = unix.Close(fd) }()
	to := unix.SockaddrLinklayer{
		Protocol: binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, unix.ETH_P_ARP)), Ifindex: l.index, Halen: 6,
	}
	copy(to.Addr[:], broadcast)
	const request, reply = 1, 2
	return errors.Join(
		unix.Sendto(fd, arpPacket(request, address, l.mac, make([]byte, 6)), 0, &to),
		unix.Sendto(fd, arpPacket(reply, address, l.mac, broadcast), 0, &to))
}

// arpPacket says that an address is at mac (RFC 826).
func arpPacket(operation uint16, address netip.Addr, mac, target []byte) []byte {
	p := []byte{0, 1, 8, 0, 6, 4} // Ethernet, IPv4, and the sizes of their addresses
	p = binary.BigEndian.AppendUint16(p, operation)
	p = append(append(p, mac...), address.AsSlice()...)
	return append(append(p, target...), address.AsSlice()...)
}

// sendNA sends an unsolicited neighbour advertisement to all nodes (RFC 4861 section 7.2.6). The
// kernel fills in the checksum. The socket takes in no messages.
func sendNA(address netip.Addr, l link) error {
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_ICMPV6)
	if err != nil {
		return fmt.Errorf("open ICMPv6 socket: %w", err)
	}
	defer func() { _ = unix.Close(fd) }()
	const onlyHops = 255 // others are not believed
	var none unix.ICMPv6Filter
	for i := range none.Data {
		none.Data[i] = 0xffffffff
	}
	err = errors.Join(
		unix.SetsockoptICMPv6Filter(fd, unix.IPPROTO_ICMPV6, unix.ICMPV6_FILTER, &none),
		unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_HOPS, onlyHops),
		unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_LOOP, 0),
		unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_IF, l.index))
	if err != nil {
		return fmt.Errorf("set up ICMPv6 socket: %w", err)
	}
	allNodes := netip.MustParseAddr("ff02::1").As16()
	return unix.Sendto(fd, naPacket(address, l.mac), 0, &unix.SockaddrInet6{Addr: allNodes, ZoneId: uint32(l.index)})
}

// naPacket says that an address is at mac, in place of what is known of it (the flag Override).
func naPacket(address netip.Addr, mac []byte) []byte {
	const advertisement, override, targetLinkLayer, eightBytes = 136, 0x20, 2, 1
	p := append([]byte{advertisement, 0, 0, 0, override, 0, 0, 0}, address.AsSlice()...)
	return append(append(p, targetLinkLayer, eightBytes), mac...)
}

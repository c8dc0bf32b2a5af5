package doctor

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// packet is one that a node forwards for its pods, or gets from them. What doctor does not know of
// it is left out.
type packet struct {
	in, out     side
	source      netip.Addr // invalid if it is not known
	destination netip.Addr
	ipv6        bool
	state       uint32 // of its connection, as in rules ("ct state")
	udp         bool   // it is of TCP otherwise
	port        uint16 // that it is for, 0 if that is not known
	local       bool   // it is for the node itself
	translated  bool   // its destination was another one
}

// aimed is a packet that must pass, and what it is for.
type aimed struct {
	packet
	what string
}

// side is the interface that a packet comes in or leaves by.
type side struct {
	name  string // "" if it is not known
	index int    // 0 if it is not known
	group *uint32
}

// States of connections, as in rules (NF_CT_STATE_BIT and, for packets that are not tracked,
// NF_CT_STATE_UNTRACKED_BIT of linux/netfilter/nf_conntrack_common.h).
const (
	stateEstablished = 1 << 1
	stateNew         = 1 << 3
	stateUntracked   = 1 << 6
)

// statusTranslated is the status of a connection whose destination was translated (IPS_DST_NAT of
// linux/netfilter/nf_conntrack_common.h).
const statusTranslated = 1 << 5

// forwarded are the packets that each node has to forward: between its pods, from a pod to
// elsewhere, and the reply. pods is their range, which may be invalid.
func forwarded(pods netip.Prefix, ipv6 bool, pod, uplink side) []aimed {
	one := podOf(pods)
	two := one.Next()
	elsewhere := netip.MustParseAddr("198.51.100.7")
	if ipv6 {
		elsewhere = netip.MustParseAddr("2001:db8:ffff::7")
	}
	return []aimed{
		{packet: packet{in: pod, out: pod, source: one, destination: two, ipv6: ipv6, state: stateNew}},
		{packet: packet{in: pod, out: uplink, source: one, destination: elsewhere, ipv6: ipv6, state: stateNew}},
		{packet: packet{in: uplink, out: pod, source: elsewhere, destination: one, ipv6: ipv6, state: stateEstablished}},
	}
}

// podOf is a pod's address in a range, invalid if that is.
func podOf(pods netip.Prefix) netip.Addr {
	if !pods.IsValid() {
		return netip.Addr{}
	}
	return pods.Masked().Addr().Next().Next()
}

// nodeService is a part of the cluster that pods reach at an address of the node (package
// cluster/nodeaddr).
type nodeService struct {
	name string
	at   netip.AddrPort // where packets arrive; port 0 if that is not known
	dns  bool           // its packets are not tracked
}

// delivered are the packets that each node has to take from its pods: for the cluster's services,
// and for ports of the node, at addresses that are not known here.
func delivered(pods netip.Prefix, ipv6 bool, pod side, services []nodeService) (all []aimed) {
	from := packet{in: pod, source: podOf(pods), ipv6: ipv6, state: stateNew, local: true}
	for _, s := range services {
		if s.at.Addr().Is6() != ipv6 {
			continue
		}
		p := from
		p.destination, p.port = s.at.Addr(), s.at.Port()
		if p.translated = !s.dns; s.dns {
			p.udp, p.state = true, stateUntracked
		}
		all = append(all, aimed{p, s.String()})
	}
	return append(all, aimed{from, "ports of this node, such as the kubelet's and those of pods in its network"})
}

func (s nodeService) String() string {
	if s.at.Port() == 0 {
		return s.name + " at " + s.at.Addr().String()
	}
	return fmt.Sprintf("%s at port %d of %s", s.name, s.at.Port(), s.at.Addr())
}

// known is a value with the bytes that are known of it.
type known struct {
	data []byte
	is   []bool
}

func knownBytes(data ...byte) known {
	k := unknownBytes(len(data))
	k.put(0, data)
	return k
}

func unknownBytes(n int) known { return known{make([]byte, n), make([]bool, n)} }

func (k known) put(at int, data []byte) {
	for i, b := range data {
		k.data[at+i], k.is[at+i] = b, true
	}
}

// slice returns some bytes; what the value does not have is not known.
func (k known) slice(at, n int) known {
	part := unknownBytes(n)
	for i := range n {
		if at+i < len(k.data) {
			part.data[i], part.is[i] = k.data[at+i], k.is[at+i]
		}
	}
	return part
}

// header returns the IP header, as far as it is known.
func (p packet) header() known {
	if p.ipv6 {
		h := unknownBytes(40)
		h.put(0, []byte{0x60})
		h.put(6, []byte{p.protocol()})
		if p.source.IsValid() {
			h.put(8, p.source.AsSlice())
		}
		if p.destination.IsValid() {
			h.put(24, p.destination.AsSlice())
		}
		return h
	}
	h := unknownBytes(20)
	h.put(0, []byte{0x45})
	h.put(6, []byte{0, 0}) // no fragment
	h.put(9, []byte{p.protocol()})
	if p.source.IsValid() {
		h.put(12, p.source.AsSlice())
	}
	if p.destination.IsValid() {
		h.put(16, p.destination.AsSlice())
	}
	return h
}

func (p packet) protocol() byte {
	if p.udp {
		return unix.IPPROTO_UDP
	}
	return unix.IPPROTO_TCP
}

// transport returns the TCP or UDP header. The client's port is any.
func (p packet) transport() known {
	const ack, syn = 0x10, 0x02
	h := unknownBytes(20)
	if p.port != 0 {
		h.put(2, binary.BigEndian.AppendUint16(nil, p.port))
	}
	switch {
	case p.udp:
	case p.state == stateEstablished:
		h.put(13, []byte{ack})
	default:
		h.put(13, []byte{syn})
	}
	return h
}

func (s side) nameBytes() known {
	if s.name == "" {
		return unknownBytes(unix.IFNAMSIZ)
	}
	name := make([]byte, unix.IFNAMSIZ)
	copy(name, s.name)
	return knownBytes(name...)
}

func (s side) indexBytes() known {
	if s.index == 0 {
		return unknownBytes(4)
	}
	return knownBytes(binary.NativeEndian.AppendUint32(nil, uint32(s.index))...)
}

func (s side) groupBytes() known {
	if s.group == nil {
		return unknownBytes(4)
	}
	return knownBytes(binary.NativeEndian.AppendUint32(nil, *s.group)...)
}

package doctor

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"
)

// packet is one that a node forwards for its pods. What doctor does not know of it is left out.
type packet struct {
	in, out     side
	source      netip.Addr // invalid if it is not known
	destination netip.Addr
	ipv6        bool
	state       uint32 // of its connection, as in rules ("ct state")
}

// side is the interface that a packet comes in or leaves by.
type side struct {
	name  string // "" if it is not known
	index int    // 0 if it is not known
	group *uint32
}

// States of connections, as in rules (NF_CT_STATE_BIT of linux/netfilter/nf_conntrack_common.h).
const (
	stateEstablished = 1 << 1
	stateNew         = 1 << 3
)

// forwarded are the packets that each node has to forward: between its pods, from a pod to
// elsewhere, and the reply. pods is their range, which may be invalid.
func forwarded(pods netip.Prefix, ipv6 bool, pod, uplink side) []packet {
	var one, two netip.Addr
	if pods.IsValid() {
		one = pods.Masked().Addr().Next().Next()
		two = one.Next()
	}
	elsewhere := netip.MustParseAddr("198.51.100.7")
	if ipv6 {
		elsewhere = netip.MustParseAddr("2001:db8:ffff::7")
	}
	return []packet{
		{pod, pod, one, two, ipv6, stateNew},
		{pod, uplink, one, elsewhere, ipv6, stateNew},
		{uplink, pod, elsewhere, one, ipv6, stateEstablished},
	}
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
		h.put(6, []byte{unix.IPPROTO_TCP})
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
	h.put(9, []byte{unix.IPPROTO_TCP})
	if p.source.IsValid() {
		h.put(12, p.source.AsSlice())
	}
	if p.destination.IsValid() {
		h.put(16, p.destination.AsSlice())
	}
	return h
}

// transport returns the TCP header: the ports are any.
func (p packet) transport() known {
	const ack, syn = 0x10, 0x02
	h := unknownBytes(20)
	h.put(13, []byte{syn})
	if p.state == stateEstablished {
		h.put(13, []byte{ack})
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

package rules

import (
	"encoding/binary"
	"net/netip"
)

// The maps of destinations say what happens to a connection. While the chains choose an endpoint, the packet has that as its
// choice (see choice.go):
//
//	bits 12-30  the number of the backend
//	bit 11      masquerade
//	bits 0-10   the Kind: a number of endpoints, 0 to reject, 1023 to drop; with bit 10 set the index of
//	            a number of endpoints and a timeout of affinity
//
// With affinity, the choice becomes the id of an endpoint: the number of the backend, and in bits 0-9 which of its
// endpoints it is. An endpoint keeps its id when it moves to another slot.
const (
	markNumber     = 0xfffff000
	markMasquerade = 1 << 11
	markSticky     = 1 << 10
	markKind       = 1<<11 - 1
	markEndpoint   = 1<<10 - 1
	kindDrop       = MaxEndpoints + 1
	maxNumber      = 1<<19 - 1
	maxSticky      = 1 << 10
)

// native is a value as the kernel compares it in a register.
func nftable.Native(v uint32) string { return string(binary.NativeEndian.AppendUint32(nil, v)) }

// native2 are two values.
func native2(v, w uint32) string {
	var room [8]byte
	return string(binary.NativeEndian.AppendUint32(binary.NativeEndian.AppendUint32(room[:0], v), w))
}

func nftable.FromNative(s string) uint32 { return binary.NativeEndian.Uint32([]byte(s)) }

// field16 and field8 are fields of a concatenation, which fill four bytes.
func nftable.Field16(v uint16) string { return string(binary.BigEndian.AppendUint16(nil, v)) + "\x00\x00" }

func nftable.Field8(v byte) string { return string([]byte{v, 0, 0, 0}) }

func nftable.Field(a netip.Addr) string { return string(a.AsSlice()) }

func destination(a netip.AddrPort) string {
	var room [20]byte
	b := room[:0]
	if a.Addr().Is4() {
		ip := a.Addr().As4()
		b = append(b, ip[:]...)
	} else {
		ip := a.Addr().As16()
		b = append(b, ip[:]...)
	}
	return string(append(binary.BigEndian.AppendUint16(b, a.Port()), 0, 0))
}

func fromDestination(s string) netip.AddrPort {
	n := len(s) - 4
	a, _ := netip.AddrFromSlice([]byte(s[:n]))
	return netip.AddrPortFrom(a, binary.BigEndian.Uint16([]byte(s[n:])))
}

// last is the highest address of a network.
func nftable.Last(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

// address is a frontend's place, which one Port at a time can have.
type address struct {
	ipv6     bool
	addr     netip.Addr // the zero Addr: a port of the node
	protocol byte
	port     uint16
}

// key is the address in the maps.
func (a address) key() string {
	k := nftable.Field8(a.protocol) + nftable.Field16(a.port)
	if a.addr.IsValid() {
		k = nftable.Field(a.addr) + k
	}
	return k
}

// numbers hands out the numbers of backends. A number is not used again soon: a packet may have it still.
type numbers struct {
	used map[uint32]bool
	next uint32
}

func newNumbers() numbers { return numbers{used: map[uint32]bool{}, next: 1} }

// take returns a free number, or 0 if there is none.
func (n *numbers) take() uint32 {
	for range maxNumber {
		v := n.next
		if n.next++; n.next > maxNumber {
			n.next = 1
		}
		if !n.used[v] {
			n.used[v] = true
			return v
		}
	}
	return 0
}

// claim takes a number that the kernel knows already.
func (n *numbers) claim(v uint32) bool {
	if v == 0 || v > maxNumber || n.used[v] {
		return false
	}
	n.used[v] = true
	return true
}

func (n *numbers) release(v uint32) { delete(n.used, v) }

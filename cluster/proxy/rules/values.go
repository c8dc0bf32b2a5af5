package rules

import (
	"encoding/binary"
	"net/netip"
)

// The maps of destinations say what happens to a connection. While the chains choose an endpoint,
// the packet has that as its choice (see choice.go):
//
//	bits 12-30  the number of the backend
//	bit 11      masquerade
//	bits 0-10   the kind: a number of endpoints, 0 to reject, 1023 to drop; with bit 10 set the index of
//	            a number of endpoints and a timeout of affinity
//
// With affinity, the choice becomes the id of an endpoint: the number of the backend, and in bits
// 0-9 which of its endpoints it is. An endpoint keeps its id when it moves to another slot.
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

// native2 are two values as the kernel compares them in registers.
func native2(v, w uint32) string {
	var room [8]byte
	return string(binary.NativeEndian.AppendUint32(binary.NativeEndian.AppendUint32(room[:0], v), w))
}

func destination(a netip.AddrPort) string {
	var room [20]byte
	b := appendAddress(room[:0], a.Addr())
	return string(append(binary.BigEndian.AppendUint16(b, a.Port()), 0, 0))
}

func appendAddress(b []byte, a netip.Addr) []byte {
	if a.Is4() {
		ip := a.As4()
		return append(b, ip[:]...)
	}
	ip := a.As16()
	return append(b, ip[:]...)
}

func fromDestination(s string) netip.AddrPort {
	n := len(s) - 4
	a, _ := netip.AddrFromSlice([]byte(s[:n]))
	return netip.AddrPortFrom(a, binary.BigEndian.Uint16([]byte(s[n:])))
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
	var room [24]byte
	b := room[:0]
	if a.addr.IsValid() {
		b = appendAddress(b, a.addr)
	}
	b = append(b, a.protocol, 0, 0, 0)
	return string(append(binary.BigEndian.AppendUint16(b, a.port), 0, 0))
}

// numbers hands out the numbers of backends. A number is not used again soon: a packet may have it
// still.
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

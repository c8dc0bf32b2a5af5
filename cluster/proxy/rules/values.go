package rules

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"time"
)

// A packet to a Service carries a mark from the lookup of its destination to the end of postrouting:
//
//	bit 31      set: the mark is ours
//	bits 12-30  the number of the backend
//	bit 11      masquerade
//	bits 0-10   the kind: a number of endpoints, 0 to reject, 1023 to drop; with bit 10 set the index of
//	            a number of endpoints and a timeout of affinity
const (
	markOurs       = 1 << 31
	markNumber     = 0xfffff000 // with markOurs
	markMasquerade = 1 << 11
	markSticky     = 1 << 10
	markKind       = 0xfff
	kindDrop       = MaxEndpoints + 1
	maxNumber      = 1<<19 - 1
	maxSticky      = 1 << 10
)

// native is a value as the kernel compares it in a register.
func native(v uint32) string { return string(binary.NativeEndian.AppendUint32(nil, v)) }

func fromNative(s string) uint32 { return binary.NativeEndian.Uint32([]byte(s)) }

// field16 and field8 are fields of a concatenation, which fill four bytes.
func field16(v uint16) string { return string(binary.BigEndian.AppendUint16(nil, v)) + "\x00\x00" }

func field8(v byte) string { return string([]byte{v, 0, 0, 0}) }

func field(a netip.Addr) string { return string(a.AsSlice()) }

func destination(a netip.AddrPort) string { return field(a.Addr()) + field16(a.Port()) }

func fromDestination(s string) netip.AddrPort {
	n := len(s) - 4
	a, _ := netip.AddrFromSlice([]byte(s[:n]))
	return netip.AddrPortFrom(a, binary.BigEndian.Uint16([]byte(s[n:])))
}

// last is the highest address of a network.
func last(p netip.Prefix) netip.Addr {
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
	k := field8(a.protocol) + field16(a.port)
	if a.addr.IsValid() {
		k = field(a.addr) + k
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

// sticky is what a chain for affinity is made for.
type sticky struct {
	count   int
	timeout time.Duration
}

// kinds are those that packets' marks can have, by family: there is a chain for each.
type kinds struct {
	plain  [2]map[int]bool // numbers of endpoints
	sticky [2][]sticky     // at its index
}

func newKinds() kinds {
	return kinds{plain: [2]map[int]bool{{}, {}}}
}

// of returns the kind for a backend, and whether it is a new one.
func (k *kinds) of(f *family, count int, timeout time.Duration, drop bool) (kind uint32, created bool) {
	switch {
	case count == 0 && drop:
		return kindDrop, false
	case count == 0:
		return 0, false
	}
	if timeout > 0 {
		want := sticky{count, timeout}
		if i := slices.Index(k.sticky[f.index], want); i >= 0 {
			return markSticky | uint32(i), false
		}
		// An index that an adopted table had no chain for is free.
		i := slices.Index(k.sticky[f.index], sticky{})
		if i < 0 && len(k.sticky[f.index]) < maxSticky {
			i = len(k.sticky[f.index])
			k.sticky[f.index] = append(k.sticky[f.index], sticky{})
		}
		if i >= 0 {
			k.sticky[f.index][i] = want
			return markSticky | uint32(i), true
		}
		// More combinations than fit: without affinity.
	}
	created = !k.plain[f.index][count]
	k.plain[f.index][count] = true
	return uint32(count), created
}

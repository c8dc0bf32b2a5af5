package nftable

import (
	"encoding/binary"
	"net/netip"
)

// Native is a value as the kernel compares it in a register.
func Native(v uint32) string {
	var room [4]byte
	binary.NativeEndian.PutUint32(room[:], v)
	return string(room[:])
}

// FromNative is the value of Native.
func FromNative(s string) uint32 { return binary.NativeEndian.Uint32([]byte(s)) }

// Field16 is a field of a concatenation, which fills four bytes.
func Field16(v uint16) string { return string(binary.BigEndian.AppendUint16(nil, v)) + "\x00\x00" }

// Field8 is a field of a concatenation, which fills four bytes.
func Field8(v byte) string { return string([]byte{v, 0, 0, 0}) }

// Field is an address as a key or a field.
func Field(a netip.Addr) string { return string(a.AsSlice()) }

// Last is the highest address of a network.
func Last(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

// Package netprefix has what net/netip leaves out about networks.
package netprefix

import "net/netip"

// Last returns the highest address of a network.
func Last(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

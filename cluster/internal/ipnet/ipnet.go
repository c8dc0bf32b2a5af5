// Package ipnet converts the networks that netlink tells to those of net/netip.
package ipnet

import (
	"net"
	"net/netip"
)

// Prefix returns the same network, with the address's own bits. It returns false for nil, which is
// a default route, and for what is no network.
func Prefix(n *net.IPNet) (netip.Prefix, bool) {
	if n == nil {
		return netip.Prefix{}, false
	}
	addr, ok := netip.AddrFromSlice(n.IP)
	ones, bits := n.Mask.Size()
	if !ok || bits == 0 {
		return netip.Prefix{}, false
	}
	if bits == 32 {
		addr = addr.Unmap()
	}
	return netip.PrefixFrom(addr, ones), true
}

// Package paths has the kernel send packets between the pods of different nodes: by direct routes
// to nodes on a shared link, and by VXLAN (RFC 7348) to others; or to all of them by WireGuard.
//
// What the kernel is to have is a Plan: routes, neighbours, forwarding entries and rules as data.
// New computes it from the nodes and touches nothing. A Network lists the kernel when it starts,
// and when someone else has changed something; apart from that it writes what differs from the last
// plan. All of it outlives the process.
//
// Words: a peer is another node. A path is how one range of its pods is reached. A tunnel end is
// what a node is in the overlay: a MAC address, which everyone derives from the node's name, and as
// its addresses the first ones of the node's pod ranges. The underlay is the network between nodes
// that carries the tunnels, IPv4 or IPv6.
package paths

import (
	"crypto/sha256"
	"net/netip"

	"github.com/coracle-project/coracle/cluster/overlay/wireguard"
)

// Node is this node, as its peers see it.
type Node struct {
	Name string
	// Addresses are those of the machine at which its peers know it. The first of an underlay is
	// the one that its tunnelled packets come from.
	Addresses []netip.Addr
	Ranges    []netip.Prefix // of its pods
	// Closed are the networks of the cluster's pods if packets are encrypted. Packets to what no
	// path leads to would otherwise leave unencrypted, by the default route.
	Closed []netip.Prefix
}

// Peer is another node.
type Peer struct {
	Name string
	// Addresses are all that the node may send tunnelled packets from.
	Addresses []netip.Addr
	// Tunnel is the address of the tunnel's far end, the zero Addr without a tunnel.
	Tunnel netip.Addr
	// Key encrypts what is sent to the node: its public key of WireGuard, zero without encryption.
	Key wireguard.Key
	// MTU is that of packets in the tunnel.
	MTU   int
	Paths []Path
}

// Path is how one range of a peer's pods is reached.
type Path struct {
	Range netip.Prefix
	// Via and Link are the peer's address on a shared link, and that link's index; zero for the
	// tunnel.
	Via  netip.Addr
	Link int
}

// Underlay is the family of addresses that carries a tunnel.
type Underlay byte

// The underlays. Each has a device of its own, because the kernel binds one to a family.
const (
	None Underlay = 0
	IPv4 Underlay = 4
	IPv6 Underlay = 6
	// Encrypted is WireGuard, by either family.
	Encrypted Underlay = 1
)

// UnderlayOf returns the underlay that an address belongs to, None for the zero Addr.
func UnderlayOf(a netip.Addr) Underlay {
	switch {
	case a.Is4():
		return IPv4
	case a.Is6():
		return IPv6
	}
	return None
}

// Overhead is how many bytes a tunnel adds to a packet: the inner Ethernet header (14), VXLAN (8),
// UDP (8), and the outer header of IPv4 (20) or IPv6 (40).
func (u Underlay) Overhead() int {
	if u == IPv6 {
		return 70
	}
	return 50
}

// MinIPv6MTU is the smallest MTU with IPv6 (RFC 8200, 5).
const MinIPv6MTU = 1280

// MAC is the address of a tunnel end.
type MAC [6]byte

// MACOf is the address of a node's tunnel end. It is local and unicast.
func MACOf(node string) MAC {
	sum := sha256.Sum256([]byte("coracle overlay " + node))
	return MAC{0x0e, sum[0], sum[1], sum[2], sum[3], sum[4]}
}

// device is the tunnel's device for a peer.
func (p *Peer) device() Underlay {
	if p.Key != (wireguard.Key{}) && p.Tunnel.IsValid() {
		return Encrypted
	}
	return UnderlayOf(p.Tunnel)
}

// End is the address of a tunnel end for a family, by the node's range of that family. No pod gets
// it: it is the range's first, which coracled leaves out.
func End(r netip.Prefix) netip.Addr { return r.Masked().Addr() }

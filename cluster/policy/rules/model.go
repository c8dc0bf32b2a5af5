// Package rules keeps the kernel's rules for network policies.
package rules

import (
	"log/slog"
	"net/netip"
)

// Direction is that of a connection, as its pod sees it.
type Direction int

// The directions.
const (
	Ingress Direction = iota
	Egress
)

// The highest numbers.
const (
	MaxClass = 1<<12 - 1
	MaxIdent = 1<<20 - 1
)

// PortRange is what a connection must be addressed to.
type PortRange struct {
	// Protocol is unix.IPPROTO_TCP, IPPROTO_UDP or IPPROTO_SCTP; 0 is all protocols and ports.
	Protocol    byte
	First, Last uint16
}

// Peer allows connections with the pods of an identity.
type Peer struct {
	Ident uint32
	Ports PortRange
}

// Block allows connections with a range of addresses, both ends included, of one family.
type Block struct {
	First, Last netip.Addr
	Ports       PortRange
}

// Class is what its pods may receive or send.
type Class struct {
	Peers  []Peer
	Blocks []Block
}

// Pod is a pod of this node: its classes, 0 for a direction in which it is not isolated.
type Pod struct{ Ingress, Egress uint32 }

// Change is a difference to what was wanted before. Nil values, and 0 in Idents, are gone.
type Change struct {
	Idents  map[netip.Addr]uint32
	Pods    map[netip.Addr]*Pod
	Classes [2]map[uint32]*Class // by Direction and number
}

// Config is what the table depends on besides policies.
type Config struct {
	// Name of the table.
	Name string
	// PodRanges are networks of this node's pods.
	PodRanges []netip.Prefix
	// LinkGroup is the group of the links of this node's pods; 0: none.
	LinkGroup uint32
	// Log tells of repairs; nil is slog.Default.
	Log *slog.Logger
}

// Connection is one in the kernel's table.
type Connection struct {
	Protocol byte
	// Destination is that of the original direction after DNAT.
	Source, Destination netip.AddrPort
}

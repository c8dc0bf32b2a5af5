// Package rules keeps the kernel's rules for network policies: one nftables table, which decides
// the packets from and to this node's pods.
//
// The caller says what is wanted (Change) in terms of data. A pod of the node has a class for each
// direction: what it may receive, and what it may send. Pods to which the same policies apply have
// the same class. Class 0 is that of pods to which no policy applies. A pod anywhere in the cluster
// has an ident: pods that all selectors of policies treat alike have the same. Ident 0 is that of
// pods, and of all other addresses, that no selector names.
//
// A packet of a connection's first direction is decided each time, so a connection that is
// forbidden later stops at its next packet. Replies pass. Traffic between a pod and its own node,
// and of a pod with itself, is always allowed. What comes from or goes to an address of the node's
// pods that no Change has named is dropped.
//
// The table is made by the first Apply and outlives the process; Remove deletes it. See layout.go
// for the table, and package nftable for how the kernel's state follows what is wanted.
//
// The entry of a connection in the kernel's connection tracker lets replies pass. A Cutter deletes
// the entries of connections that the rules forbid by now, while the rules go on changing.
package rules

import (
	"fmt"
	"log/slog"
	"math"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Direction is that of packets, seen from a pod.
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

// Others is, in place of a protocol, all that have no ports here: all but TCP, UDP and SCTP.
const Others = 255 // reserved by IANA

// OtherProtocols are all packets of Others.
var OtherProtocols = PortRange{Protocol: Others, Last: math.MaxUint16}

// PortRange is a range of ports of a protocol.
type PortRange struct {
	Protocol    byte // unix.IPPROTO_TCP, IPPROTO_UDP or IPPROTO_SCTP; 0: all protocols and ports; Others
	First, Last uint16
}

// Peer is an ident that a class may talk with.
type Peer struct {
	Ident uint32 // not 0
	Ports PortRange
}

// Block is a range of addresses of one family that a class may talk with.
type Block struct {
	First, Last netip.Addr // inclusive
	Ports       PortRange
}

// Class is what its pods may receive or send.
type Class struct {
	Peers  []Peer
	Blocks []Block
	// Decided are idents that Peers alone decide about: Blocks allow them nothing.
	Decided []uint32 // not 0
}

// Pod is a pod of this node: its classes, 0 for a direction in which it is not isolated. A class
// that no Change has named allows nothing.
type Pod struct{ Ingress, Egress uint32 }

// Change is a difference to what was wanted before. Nil values, and 0 for Idents, are gone.
type Change struct {
	Idents  map[netip.Addr]uint32
	Pods    map[netip.Addr]*Pod
	Classes [2]map[uint32]*Class // by Direction and number
	// LinkGroup is the group of the links of this node's pods, 0 for none; nil is as before.
	// Packets that come in by such a link from a source, or go out by one to a destination, that no
	// Change has named are dropped.
	LinkGroup *uint32
}

// Config is what the table depends on besides policies.
type Config struct {
	// Name of the table.
	Name string
	// PodRanges are networks of this node's pods. Packets from and to addresses in them that no
	// Change has named are dropped.
	PodRanges []netip.Prefix
	// Log tells of repairs; nil discards it.
	Log *slog.Logger
}

// Connection is seen from its first packet. Ports are 0 for protocols that have none.
type Connection struct {
	Protocol byte
	// Destination is that after Services' translation.
	Source, Destination netip.AddrPort
}

// check refuses what the kernel's table cannot hold.
func (c *Change) check() error {
	for a, ident := range c.Idents {
		if err := checkAddress(a); err != nil {
			return fmt.Errorf("ident %d: %w", ident, err)
		}
		if ident > MaxIdent {
			return fmt.Errorf("ident %d of %s: over %d", ident, a, MaxIdent)
		}
	}
	for a, p := range c.Pods {
		if err := checkAddress(a); err != nil {
			return fmt.Errorf("pod: %w", err)
		}
		if p != nil && max(p.Ingress, p.Egress) > MaxClass {
			return fmt.Errorf("class %d of pod %s: over %d", max(p.Ingress, p.Egress), a, MaxClass)
		}
	}
	for _, classes := range c.Classes {
		for number, class := range classes {
			if number == 0 || number > MaxClass {
				return fmt.Errorf("class %d: not in 1 to %d", number, MaxClass)
			}
			if err := class.check(); err != nil {
				return fmt.Errorf("class %d: %w", number, err)
			}
		}
	}
	return nil
}

func (c *Class) check() error {
	if c == nil {
		return nil
	}
	for _, p := range c.Peers {
		if p.Ident == 0 || p.Ident > MaxIdent {
			return fmt.Errorf("ident %d: not in 1 to %d", p.Ident, MaxIdent)
		}
		if err := p.Ports.check(); err != nil {
			return err
		}
	}
	for _, ident := range c.Decided {
		if ident == 0 || ident > MaxIdent {
			return fmt.Errorf("decided ident %d: not in 1 to %d", ident, MaxIdent)
		}
	}
	for _, b := range c.Blocks {
		// An end of a range of IPv6 may look like an IPv4 address in IPv6: ::/80 ends so.
		if b.First.BitLen() == 0 || b.First.BitLen() != b.Last.BitLen() || b.First.Zone()+b.Last.Zone() != "" || b.Last.Less(b.First) {
			return fmt.Errorf("addresses %s to %s: not a range", b.First, b.Last)
		}
		if err := b.Ports.check(); err != nil {
			return err
		}
	}
	return nil
}

func checkAddress(a netip.Addr) error {
	if !a.IsValid() || a.Is4In6() || a.Zone() != "" {
		return fmt.Errorf("address %s: not a plain IPv4 or IPv6 address", a)
	}
	return nil
}

func (p PortRange) check() error {
	switch p.Protocol {
	case 0:
		return nil
	case Others:
		if p == OtherProtocols {
			return nil
		}
	case unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_SCTP:
		if p.First <= p.Last {
			return nil
		}
	}
	return fmt.Errorf("protocol %d, ports %d to %d: not a range of ports", p.Protocol, p.First, p.Last)
}

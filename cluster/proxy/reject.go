// Package proxy is what the node does with packets to the addresses of Services. It routes none yet: it
// rejects them.
//
// Without that they would leave by the default route, to whatever answers there, and a client would wait for
// its own timeout. A proxy that a user runs is not disturbed: it replaces the address before the rules here
// look at it, and an address that the node itself has is left alone.
package proxy

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Of linux/netfilter/nf_tables.h: what a sender is told is "connection refused".
const (
	rejectICMPX     = 2 // NFT_REJECT_ICMPX_UNREACH
	portUnreachable = 1 // NFT_REJECT_ICMPX_PORT_UNREACH
)

// Reject has the kernel reject what this node and its pods send to services, the network of Services'
// addresses. The rules are a table of this name, and replace one that a killed process has left:
//
//	table inet NAME {
//	  chain output  { type filter hook output priority filter
//	    oifname != "lo" ip daddr 10.96.0.0/16 reject with icmpx port-unreachable }
//	  chain forward { type filter hook forward priority filter; the same }
//	}
func Reject(name string, services netip.Prefix) error {
	conn, err := nftables.New()
	if err != nil {
		return fmt.Errorf("open nftables: %w", err)
	}
	table := drop(conn, name)
	conn.AddTable(table)
	for name, hook := range map[string]*nftables.ChainHook{"output": nftables.ChainHookOutput, "forward": nftables.ChainHookForward} {
		chain := conn.AddChain(&nftables.Chain{
			Name: name, Table: table, Type: nftables.ChainTypeFilter, Hooknum: hook, Priority: nftables.ChainPriorityFilter,
		})
		conn.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: rejecting(services)})
	}
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("nftables table %s: %w", name, err)
	}
	return nil
}

// Remove takes back what Reject did.
func Remove(name string) error {
	conn, err := nftables.New()
	if err != nil {
		return fmt.Errorf("open nftables: %w", err)
	}
	drop(conn, name)
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("nftables table %s: %w", name, err)
	}
	return nil
}

// drop has conn delete the table, if there is one.
func drop(conn *nftables.Conn, name string) *nftables.Table {
	table := &nftables.Table{Name: name, Family: nftables.TableFamilyINet}
	conn.AddTable(table) // so that there is one to delete
	conn.DelTable(table)
	return table
}

// rejecting rejects packets to services that leave by an interface.
func rejecting(services netip.Prefix) []expr.Any {
	proto, offset := byte(unix.NFPROTO_IPV4), uint32(16) // of the destination in the header
	if services.Addr().Is6() {
		proto, offset = unix.NFPROTO_IPV6, 24
	}
	mask := net.CIDRMask(services.Bits(), services.Addr().BitLen())
	size := uint32(len(mask))
	lo := make([]byte, unix.IFNAMSIZ)
	copy(lo, "lo")
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{proto}},
		&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: 1},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: lo},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: size},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: size, Mask: mask, Xor: make([]byte, size)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: services.Masked().Addr().AsSlice()},
		&expr.Reject{Type: rejectICMPX, Code: portUnreachable},
	}
}

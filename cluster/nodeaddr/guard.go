package nodeaddr

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// guard drops packets to held addresses that are neither the node's nor its pods':
//
//	table inet coracle-addr-10.96.0.10 {
//	  flags owner
//	  set pods4 { type ipv4_addr; }                             # on other links than coracled's
//	  set pods6 { type ipv6_addr; }
//	  chain prerouting { type filter hook prerouting priority raw;
//	    ip daddr 10.96.0.10 goto others
//	    ip6 daddr fd00:96::a goto others }
//	  chain others {
//	    iif lo return
//	    meta iifgroup & 0xc0000000 == 0x40000000 return         # coracled's links
//	    fib saddr . iif oif 0 drop                              # the source is not there
//	    ip saddr @pods4 return
//	    ip6 saddr @pods6 return
//	    ip saddr 10.244.1.0/24 return                           # of NewPods
//	    drop }
//	}
type guard struct {
	*table
	pods map[byte]*nftables.Set // by protocol
}

// The two first bits of the group of links of coracled's pods (linkGroup of network/link.go).
// coracled lets through by such a link only what has the pod's own address. The groups that people
// use are small numbers.
const groupMask, podGroup = 0xc0000000, 0x40000000

func newGuard(addrs []netip.Addr, ranges []netip.Prefix, pods []netip.Addr, lo uint32) (*guard, error) {
	t, err := openTable(tableName(addrs))
	if err != nil {
		return nil, err
	}
	g := &guard{table: t, pods: map[byte]*nftables.Set{
		unix.NFPROTO_IPV4: {Table: t.table, Name: "pods4", KeyType: nftables.TypeIPAddr},
		unix.NFPROTO_IPV6: {Table: t.table, Name: "pods6", KeyType: nftables.TypeIP6Addr},
	}}
	err = g.make(addrs, ranges, pods, lo)
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EEXIST) {
		err = ErrHeld
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("nftables table %s: %w", t.table.Name, err), t.conn.CloseLasting())
	}
	return g, nil
}

func (g *guard) make(addrs []netip.Addr, ranges []netip.Prefix, pods []netip.Addr, lo uint32) error {
	if err := g.replace(); err != nil {
		return err
	}
	for _, set := range g.pods {
		if err := g.conn.AddSet(set, nil); err != nil {
			return err
		}
	}
	others := g.conn.AddChain(&nftables.Chain{Name: "others", Table: g.table.table})
	rule := func(exprs ...expr.Any) {
		g.conn.AddRule(&nftables.Rule{Table: g.table.table, Chain: others, Exprs: exprs})
	}
	pass, drop := &expr.Verdict{Kind: expr.VerdictReturn}, &expr.Verdict{Kind: expr.VerdictDrop}
	rule(&expr.Meta{Key: expr.MetaKeyIIF, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binary.NativeEndian.AppendUint32(nil, lo)}, pass)
	rule(&expr.Meta{Key: expr.MetaKeyIIFGROUP, Register: 1},
		&expr.Bitwise{
			SourceRegister: 1, DestRegister: 1, Len: 4,
			Mask: binary.NativeEndian.AppendUint32(nil, groupMask), Xor: make([]byte, 4),
		},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binary.NativeEndian.AppendUint32(nil, podGroup)}, pass)
	rule(&expr.Fib{Register: 1, FlagSADDR: true, FlagIIF: true, ResultOIF: true},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: make([]byte, 4)}, drop)
	for protocol, set := range g.pods {
		rule(append(address(protocol, source),
			&expr.Lookup{SourceRegister: 1, SetName: set.Name, SetID: set.ID}, pass)...)
	}
	for _, r := range ranges {
		size := r.Addr().BitLen() / 8
		mask := make([]byte, size)
		for i := range r.Bits() {
			mask[i/8] |= 0x80 >> (i % 8)
		}
		rule(append(address(protocol(r.Addr()), source),
			&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: uint32(size), Mask: mask, Xor: make([]byte, size)},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: r.Masked().Addr().AsSlice()}, pass)...)
	}
	rule(drop)

	prerouting := g.conn.AddChain(&nftables.Chain{
		Name: "prerouting", Table: g.table.table, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityRaw,
	})
	for _, addr := range addrs {
		g.conn.AddRule(&nftables.Rule{Table: g.table.table, Chain: prerouting, Exprs: append(
			isAddress(addr, destination), &expr.Verdict{Kind: expr.VerdictGoto, Chain: others.Name})})
	}
	if err := g.queue(pods, (*nftables.Conn).SetAddElements); err != nil {
		return err
	}
	return g.flush()
}

// change says which addresses pods have got, and have no more, in one transaction.
func (g *guard) change(added, removed []netip.Addr) error {
	err := g.queue(removed, (*nftables.Conn).SetDeleteElements)
	if err == nil {
		err = g.queue(added, (*nftables.Conn).SetAddElements)
	}
	if err == nil {
		err = g.flush()
	}
	if err != nil {
		return fmt.Errorf("nftables table %s: %w", g.table.table.Name, err)
	}
	return nil
}

// queue adds a change of elements to the next transaction.
func (g *guard) queue(addrs []netip.Addr, change func(*nftables.Conn, *nftables.Set, []nftables.SetElement) error) error {
	elements := map[byte][]nftables.SetElement{}
	for _, addr := range addrs {
		elements[protocol(addr)] = append(elements[protocol(addr)], nftables.SetElement{Key: addr.AsSlice()})
	}
	for protocol, list := range elements {
		if err := change(g.conn, g.pods[protocol], list); err != nil {
			return err
		}
	}
	return nil
}

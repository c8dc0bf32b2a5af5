package nodeaddr

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strconv"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// beforeHostPorts comes before dstnat (-100): host ports of pods match each address of the node, these too.
const beforeHostPorts = -110

// Redirect has TCP connections to a port of a held address arrive at another port of it, until restore is called. A
// server that listened on a well-known port itself would take it from all of the node: a pod could not have that host
// port, and no process could listen there on all addresses. Like the table of Hold, that of Redirect goes with the process:
//
//	table inet coracle-addr-10.96.0.1-443 {
//	  flags owner
//	  chain prerouting { type nat hook prerouting priority -110;
//	    ip daddr 10.96.0.1 tcp dport 443 dnat ip to 10.96.0.1:6443 }
//	  chain output { type nat hook output priority -110; the same }
//	}
//
// Connections that were redirected go on when it is gone.
func Redirect(from netip.AddrPort, to uint16) (restore func() error, err error) {
	name := tableName([]netip.Addr{from.Addr()}) + "-" + strconv.Itoa(int(from.Port()))
	t, err := openTable(name)
	if err != nil {
		return nil, fmt.Errorf("redirect %s: %w", from, err)
	}
	if err := t.redirect(from, to); err != nil {
		return nil, errors.Join(fmt.Errorf("redirect %s: nftables table %s: %w", from, name, err), t.conn.CloseLasting())
	}
	return t.remove, nil
}

func (t *table) redirect(from netip.AddrPort, to uint16) error {
	if err := t.replace(); err != nil {
		return err
	}
	for name, hook := range map[string]*nftables.ChainHook{"prerouting": nftables.ChainHookPrerouting, "output": nftables.ChainHookOutput} {
		chain := t.conn.AddChain(&nftables.Chain{
			Name: name, Table: t.table, Type: nftables.ChainTypeNAT,
			Hooknum: hook, Priority: nftables.ChainPriorityRef(beforeHostPorts),
		})
		t.conn.AddRule(&nftables.Rule{Table: t.table, Chain: chain, Exprs: redirecting(from, to)})
	}
	return t.flush()
}

func redirecting(from netip.AddrPort, to uint16) []expr.Any {
	port := func(n uint16) []byte { return binary.BigEndian.AppendUint16(nil, n) }
	return append(isTo(from.Addr()),
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{unix.IPPROTO_TCP}},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: port(from.Port())},
		&expr.Immediate{Register: 1, Data: from.Addr().AsSlice()},
		&expr.Immediate{Register: 2, Data: port(to)},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(protocol(from.Addr())), RegAddrMin: 1, RegProtoMin: 2},
	)
}

package nodeaddr

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strconv"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
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
	var socket *netlink.Conn
	conn, err := nftables.New(nftables.AsLasting(), nftables.WithSockOptions(func(c *netlink.Conn) error {
		socket = c
		return nil
	}))
	if err != nil {
		return nil, fmt.Errorf("redirect %s: open nftables: %w", from, err)
	}
	name := tableName([]netip.Addr{from.Addr()}) + "-" + strconv.Itoa(int(from.Port()))
	t := &table{conn: conn, socket: socket, table: &nftables.Table{Name: name, Family: nftables.TableFamilyINet}}
	if err := t.redirect(from, to); err != nil {
		return nil, errors.Join(fmt.Errorf("redirect %s: nftables table %s: %w", from, name, err), conn.CloseLasting())
	}
	return t.remove, nil
}

func (t *table) redirect(from netip.AddrPort, to uint16) error {
	t.conn.AddTable(t.table) // so that there is one to delete
	t.conn.DelTable(t.table) // one without an owner, which a killed process has left
	if err := t.flush(); err != nil {
		return err
	}
	if err := t.own(); errors.Is(err, unix.EINVAL) { // Linux before 5.12
		t.conn.AddTable(t.table)
	} else if err != nil {
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
	proto, offset := byte(unix.NFPROTO_IPV4), uint32(16) // of the destination in the header
	if from.Addr().Is6() {
		proto, offset = unix.NFPROTO_IPV6, 24
	}
	addr := from.Addr().AsSlice()
	port := func(n uint16) []byte { return binary.BigEndian.AppendUint16(nil, n) }
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{proto}},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: uint32(len(addr))},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: addr},
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{unix.IPPROTO_TCP}},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: port(from.Port())},
		&expr.Immediate{Register: 1, Data: addr},
		&expr.Immediate{Register: 2, Data: port(to)},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(proto), RegAddrMin: 1, RegProtoMin: 2},
	}
}

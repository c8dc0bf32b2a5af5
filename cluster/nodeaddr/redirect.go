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

// A server that listened on a well-known port itself would take it from all of the node: a pod
// could not have that host port, and no process could listen there on all addresses. So it listens
// on another port of the held address, and packets to the well-known one arrive there. Like that of
// Hold, these tables go with the process.

// beforeHostPorts comes before dstnat (-100): host ports of pods match each address of the node,
// these too.
const beforeHostPorts = -110

// Redirect has TCP connections to a port of a held address arrive at another port of it, until
// restore is called. Clients may use the other port, too.
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
	return redirect(from, func(t *table) {
		for name, hook := range hooks {
			chain := t.conn.AddChain(&nftables.Chain{
				Name: name, Table: t.table, Type: nftables.ChainTypeNAT,
				Hooknum: hook, Priority: nftables.ChainPriorityRef(beforeHostPorts),
			})
			rule := append(isAddress(from.Addr(), destination), isPort(unix.IPPROTO_TCP, destination, from.Port())...)
			t.conn.AddRule(&nftables.Rule{Table: t.table, Chain: chain, Exprs: append(rule,
				&expr.Immediate{Register: 1, Data: from.Addr().AsSlice()},
				&expr.Immediate{Register: 2, Data: binary.BigEndian.AppendUint16(nil, to)},
				&expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(protocol(from.Addr())), RegAddrMin: 1, RegProtoMin: 2},
			)})
		}
	})
}

// Rename has TCP and UDP packets to a port of a held address arrive at another port of it, and what
// leaves that port come from the first, until restore is called. No client can use the other port
// itself. There is no connection tracking: a query of a few microseconds needs no entry in the
// kernel's table for half a minute, and works when the table is full. As nothing is remembered,
// nothing of an earlier process is followed either.
//
//	table inet coracle-addr-10.96.0.10-53 {
//	  flags owner
//	  chain prerouting { type filter hook prerouting priority raw;
//	    ip daddr 10.96.0.10 goto arriving }
//	  chain output { type filter hook output priority raw;
//	    ip saddr 10.96.0.10 jump leaving
//	    ip daddr 10.96.0.10 goto arriving }
//	  chain arriving {
//	    udp dport 53 udp dport set 334 notrack
//	    tcp dport 53 tcp dport set 334 notrack }
//	  chain leaving {
//	    udp sport 334 udp sport set 53 notrack
//	    tcp sport 334 tcp sport set 53 notrack }
//	}
func Rename(from netip.AddrPort, to uint16) (restore func() error, err error) {
	return redirect(from, func(t *table) {
		arriving := t.renaming("arriving", destination, from.Port(), to)
		leaving := t.renaming("leaving", source, to, from.Port())
		for name, hook := range hooks {
			chain := t.conn.AddChain(&nftables.Chain{
				Name: name, Table: t.table, Type: nftables.ChainTypeFilter,
				Hooknum: hook, Priority: nftables.ChainPriorityRaw,
			})
			lead := func(d direction, kind expr.VerdictKind, to string) {
				t.conn.AddRule(&nftables.Rule{Table: t.table, Chain: chain, Exprs: append(
					isAddress(from.Addr(), d), &expr.Verdict{Kind: kind, Chain: to})})
			}
			if hook == nftables.ChainHookOutput { // the node asks itself from the same address
				lead(source, expr.VerdictJump, leaving)
			}
			lead(destination, expr.VerdictGoto, arriving)
		}
	})
}

// hooks are those that packets to the node pass first: from others, and from the node itself.
var hooks = map[string]*nftables.ChainHook{"prerouting": nftables.ChainHookPrerouting, "output": nftables.ChainHookOutput}

// redirect makes a table for a port of a held address.
func redirect(from netip.AddrPort, build func(*table)) (restore func() error, err error) {
	name := tableName([]netip.Addr{from.Addr()}) + "-" + strconv.Itoa(int(from.Port()))
	t, err := openTable(name)
	if err != nil {
		return nil, fmt.Errorf("redirect %s: %w", from, err)
	}
	if err = t.replace(); err == nil {
		build(t)
		err = t.flush()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("redirect %s: nftables table %s: %w", from, name, err), t.conn.CloseLasting())
	}
	return t.remove, nil
}

// checksums are where the transport protocols' headers have theirs.
var checksums = map[byte]uint32{unix.IPPROTO_UDP: 6, unix.IPPROTO_TCP: 16}

// renaming adds a chain that writes another port into packets, and returns its name.
func (t *table) renaming(name string, d direction, from, to uint16) string {
	chain := t.conn.AddChain(&nftables.Chain{Name: name, Table: t.table})
	for transport, checksum := range checksums {
		t.conn.AddRule(&nftables.Rule{Table: t.table, Chain: chain, Exprs: append(isPort(transport, d, from),
			&expr.Immediate{Register: 1, Data: binary.BigEndian.AppendUint16(nil, to)},
			&expr.Payload{
				OperationType: expr.PayloadWrite, SourceRegister: 1, Base: expr.PayloadBaseTransportHeader,
				Offset: 2 * uint32(d), Len: 2, CsumType: expr.CsumTypeInet, CsumOffset: checksum,
			},
			&expr.Notrack{},
		)})
	}
	return name
}

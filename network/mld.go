package network

import (
	"crypto/sha256"
	"encoding/binary"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// ICMPv6 types by which a host tells routers and switches what groups it listens to (MLD): RFC 2710, 3810.
const (
	mldReport   = 131
	mldDone     = 132
	mldReportV2 = 143
)

// mldRecords is how many groups a report may tell of that is looked at. A pod that comes tells of two.
const mldRecords = 4

// keepReports has a bridge keep to itself what pods tell of IPv6 groups that no router forwards (link-local
// ones, RFC 4291, 2.7): each address has one, and a bridge sends every report to every port. No pod
// wants them, nor does the bridge itself (see stopChatter). With 500 pods that was 11 of the 42 ms of
// processor time that a start took.
//
//	table bridge coracle0 {
//	  chain reports { type filter hook prerouting priority filter
//	    meta l4proto != ipv6-icmp accept
//	    meta iifgroup != …that of this bridge's pods… accept
//	    icmpv6 type { mld-listener-report, mld-listener-done } @th,64,16 0xff02 drop
//	    icmpv6 type mld2-listener-report …one to four records, all of link-local groups… drop }
//	}
//
// Reports of wider groups pass: the host may be a router of those. So does what comes by other bridges and other
// ports: these may lead to a switch that goes by reports.
func (f *firewall) keepReports() error {
	return f.transaction(func(c *nftables.Conn) error {
		t := f.bridgeTable()
		renewTable(c, t)
		chain := c.AddChain(&nftables.Chain{
			Table: t, Name: "reports", Type: nftables.ChainTypeFilter,
			Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityRef(bridgeFilter),
		})
		add := func(verdict expr.VerdictKind, parts ...[]expr.Any) {
			all := append(rule(parts...), &expr.Verdict{Kind: verdict})
			c.AddRule(&nftables.Rule{Table: t, Chain: chain, Exprs: all})
		}
		drop := func(typ byte, parts ...[]expr.Any) { add(expr.VerdictDrop, transport(0, typ), rule(parts...)) }
		add(expr.VerdictAccept, meta(expr.MetaKeyL4PROTO, expr.CmpOpNeq, unix.IPPROTO_ICMPV6))
		add(expr.VerdictAccept, meta(expr.MetaKeyIIFGROUP, expr.CmpOpNeq, binary.NativeEndian.AppendUint32(nil, linkGroup(f.bridge))...))
		for _, typ := range []byte{mldReport, mldDone} {
			drop(typ, transport(8, linkLocalGroup...))
		}
		for n := 1; n <= mldRecords; n++ {
			parts := [][]expr.Any{transport(6, binary.BigEndian.AppendUint16(nil, uint16(n))...)}
			for i := range uint32(n) {
				// Of 20 bytes: type, no auxiliary data, no sources, group.
				parts = append(parts, transport(8+20*i+1, append([]byte{0, 0, 0}, linkLocalGroup...)...))
			}
			drop(mldReportV2, parts...)
		}
		return nil
	})
}

// bridgeFilter is NF_BR_PRI_FILTER_BRIDGED (linux/netfilter_bridge.h), nft's "filter" of this family: before
// br_netfilter shows the packet to IP's own hooks.
const bridgeFilter = -200

// linkLocalGroup is how the address of such a group begins.
var linkLocalGroup = []byte{0xff, 0x02}

func (f *firewall) bridgeTable() *nftables.Table {
	return &nftables.Table{Name: f.bridge, Family: nftables.TableFamilyBridge}
}

// linkGroup is the group (ip-link(8)) that the links of a bridge's pods are in.
func linkGroup(bridge string) uint32 {
	sum := sha256.Sum256([]byte(bridge))
	return binary.BigEndian.Uint32(sum[:])>>2 | 1<<30 // not one that people use, and no negative number
}

// transport matches bytes of the header after IP's.
func transport(offset uint32, want ...byte) []expr.Any {
	return []expr.Any{
		&expr.Payload{DestRegister: reg1, Base: expr.PayloadBaseTransportHeader, Offset: offset, Len: uint32(len(want))},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg1, Data: want},
	}
}

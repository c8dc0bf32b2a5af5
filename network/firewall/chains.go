package firewall

import (
	"encoding/binary"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// addSources drops what pods send with a source that is not theirs, and what others send with pods'
// addresses. Neighbours are permanent, so neighbour discovery is dropped, too; the links ignore ARP
// (IFF_NOARP).
func (f *Table) addSources(c *nftables.Conn, t *nftables.Table, r Rules) {
	chain := c.AddChain(&nftables.Chain{
		Table: t, Name: "sources", Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityRef(beforeDefrag),
	})
	add := func(parts ...[]expr.Any) {
		c.AddRule(&nftables.Rule{Table: t, Chain: chain, Exprs: rule(parts...)})
	}
	for _, s := range r.Subnets {
		fam := FamilyOf(s.Addr())
		add(f.inGroup(expr.MetaKeyIIFGROUP, expr.CmpOpNeq), meta(expr.MetaKeyIIFNAME, expr.CmpOpNeq, padded("lo")...),
			fam.is(), fam.within(fam.src, s), drop)
	}
	add(f.inGroup(expr.MetaKeyIIFGROUP, expr.CmpOpNeq), pass)
	add(IPv4.is(), IPv4.within(IPv4.dst, loopback4), drop)
	if r.Bridge { // its pods share a link, so the link does not identify them
		add(meta(expr.MetaKeyIIFNAME, expr.CmpOpEq, padded(f.name)...), pass)
	}
	add(IPv4.is(), IPv4.own(), pass)
	add(IPv4.is(), IPv4.within(IPv4.src, netip.PrefixFrom(netip.IPv4Unspecified(), 32)),
		IPv4.within(IPv4.dst, netip.PrefixFrom(netip.AddrFrom4([4]byte{255, 255, 255, 255}), 32)),
		meta(expr.MetaKeyL4PROTO, expr.CmpOpEq, unix.IPPROTO_UDP),
		payload(expr.PayloadBaseTransportHeader, 2, 0, 67), pass) // BOOTP
	add(IPv6.is(), meta(expr.MetaKeyL4PROTO, expr.CmpOpEq, unix.IPPROTO_ICMPV6), []expr.Any{
		&expr.Payload{DestRegister: reg1, Base: expr.PayloadBaseTransportHeader, Offset: 0, Len: 1},
		&expr.Range{Op: expr.CmpOpEq, Register: reg1, FromData: []byte{routerSolicitation}, ToData: []byte{redirect}},
	}, drop)
	add(IPv6.is(), IPv6.own(), pass)
	add(IPv6.is(), IPv6.within(IPv6.src, linkLocal6), pass)
	add(drop)
}

// beforeDefrag is NF_IP_PRI_RAW_BEFORE_DEFRAG (linux/netfilter_ipv4.h): each fragment is checked. A
// pod could put its own fragment into a neighbour's packet otherwise.
const beforeDefrag = -450

// Neighbour discovery has the ICMPv6 types from routerSolicitation to redirect (RFC 4861, 4).
const routerSolicitation, redirect = 133, 137

// own matches a packet with the source of the pod whose link it comes by.
func (f Family) own() []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: reg32(0)},
		&expr.Payload{DestRegister: reg32(4), Base: expr.PayloadBaseLLHeader, Offset: 6, Len: 6},
		&expr.Payload{DestRegister: reg32(6), Base: expr.PayloadBaseNetworkHeader, Offset: f.src, Len: uint32(f.bits / 8)},
		&expr.Lookup{SourceRegister: reg32(0), SetName: "pods" + f.suffix},
	}
}

// addForward keeps from the pods what they have not asked for.
func (f *Table) addForward(c *nftables.Conn, t *nftables.Table, r Rules) error {
	toPods := c.AddChain(&nftables.Chain{Table: t, Name: "to_pods"})
	add := func(chain *nftables.Chain, parts ...[]expr.Any) {
		c.AddRule(&nftables.Rule{Table: t, Chain: chain, Exprs: rule(parts...)})
	}
	add(toPods, ctBits(expr.CtKeySTATE, expr.CtStateBitESTABLISHED|expr.CtStateBitRELATED), pass)
	add(toPods, ctBits(expr.CtKeySTATUS, ctDNAT), pass)
	for _, s := range r.Allowed {
		fam := FamilyOf(s.Addr())
		add(toPods, fam.is(), fam.within(fam.src, s), pass)
	}
	for _, fam := range []Family{IPv4, IPv6} {
		s := f.peers(fam)
		if err := addSet(c, s, peerElements(r.Peers, fam)); err != nil {
			return err
		}
		add(toPods, fam.is(), []expr.Any{
			&expr.Payload{DestRegister: reg1, Base: expr.PayloadBaseNetworkHeader, Offset: fam.src, Len: uint32(fam.bits / 8)},
			&expr.Lookup{SourceRegister: reg1, SetName: s.Name, SetID: s.ID},
		}, pass)
	}
	add(toPods, drop)

	forward := c.AddChain(&nftables.Chain{
		Table: t, Name: "forward", Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookForward, Priority: nftables.ChainPriorityFilter,
	})
	add(forward, f.inGroup(expr.MetaKeyIIFGROUP, expr.CmpOpEq), pass)
	add(forward, f.inGroup(expr.MetaKeyOIFGROUP, expr.CmpOpEq), []expr.Any{&expr.Verdict{Kind: expr.VerdictGoto, Chain: toPods.Name}})
	add(forward, ctBits(expr.CtKeySTATUS, ctDNAT), pass)
	for _, fam := range []Family{IPv4, IPv6} {
		names, closed := r.Uplinks[fam]
		if !closed {
			continue
		}
		s := f.uplinks(fam)
		if err := addSet(c, s, nameElements(names)); err != nil {
			return err
		}
		isUplink := func(key expr.MetaKey) []expr.Any {
			return []expr.Any{&expr.Meta{Key: key, Register: reg1}, &expr.Lookup{SourceRegister: reg1, SetName: s.Name, SetID: s.ID}}
		}
		add(forward, fam.is(), isUplink(expr.MetaKeyIIFNAME), isUplink(expr.MetaKeyOIFNAME), drop)
	}
	return nil
}

// uplinks is the set of interfaces between which the host forwards nothing of a family.
func (f *Table) uplinks(fam Family) *nftables.Set {
	return &nftables.Set{Table: f.table(), Name: "uplinks" + fam.suffix, ID: 10 + uint32(fam.proto), KeyType: nftables.TypeIFName}
}

// SetUplinks changes the interfaces between which nothing is forwarded.
func (f *Table) SetUplinks(closed map[Family][]string) error {
	return f.transaction(func(c *nftables.Conn) error {
		for fam, names := range closed {
			s := f.uplinks(fam)
			c.FlushSet(s)
			if err := inLists(c, s, nameElements(names), (*nftables.Conn).SetAddElements); err != nil {
				return err
			}
		}
		return nil
	})
}

func nameElements(names []string) []nftables.SetElement {
	elements := []nftables.SetElement{}
	for _, name := range names {
		elements = append(elements, nftables.SetElement{Key: padded(name)})
	}
	return elements
}

func (f *Table) addHostPorts(c *nftables.Conn, t *nftables.Table) {
	ports := c.AddChain(&nftables.Chain{Table: t, Name: "hostports"})
	for _, fam := range []Family{IPv4, IPv6} {
		if fam == IPv6 {
			c.AddRule(&nftables.Rule{Table: t, Chain: ports, Exprs: rule(
				fam.is(), fam.within(fam.dst, netip.PrefixFrom(netip.IPv6Loopback(), 128)),
				[]expr.Any{&expr.Verdict{Kind: expr.VerdictReturn}},
			)})
		}
		addr := &expr.Payload{DestRegister: reg32(0), Base: expr.PayloadBaseNetworkHeader, Offset: fam.dst, Len: uint32(fam.bits / 8)}
		c.AddRule(&nftables.Rule{Table: t, Chain: ports, Exprs: rule(fam.is(), []expr.Any{addr}, fam.dnat("addrports", fam.words()))})
		c.AddRule(&nftables.Rule{Table: t, Chain: ports, Exprs: rule(fam.is(), fam.dnat("ports", 0))})
	}
	for _, hook := range []struct {
		name string
		num  *nftables.ChainHook
	}{{"prerouting", nftables.ChainHookPrerouting}, {"output", nftables.ChainHookOutput}} {
		chain := c.AddChain(&nftables.Chain{
			Table: t, Name: hook.name, Type: nftables.ChainTypeNAT, Hooknum: hook.num, Priority: nftables.ChainPriorityRef(afterServices),
		})
		local := make([]byte, 4)
		binary.NativeEndian.PutUint32(local, unix.RTN_LOCAL)
		c.AddRule(&nftables.Rule{Table: t, Chain: chain, Exprs: []expr.Any{
			&expr.Fib{Register: reg1, FlagDADDR: true, ResultADDRTYPE: true},
			&expr.Cmp{Op: expr.CmpOpEq, Register: reg1, Data: local},
			&expr.Verdict{Kind: expr.VerdictJump, Chain: ports.Name},
		}})
	}
}

// afterServices is behind the chains of Services (dstnat), so that these have their ports whichever
// table was made last.
const afterServices = -99

// dnat looks the protocol and port up in a map, after n words of key that are in
// registers already, and sends the packet to what it finds; else it goes on.
func (f Family) dnat(mapName string, n uint32) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg32(n)},
		&expr.Payload{DestRegister: reg32(n + 1), Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Lookup{SourceRegister: reg32(0), DestRegister: reg32(0), IsDestRegSet: true, SetName: mapName + f.suffix},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(f.proto), RegAddrMin: reg32(0), RegProtoMin: reg32(f.words())},
	}
}

// addPostrouting gives packets the host's address where the pod's own, or loopback, would be no
// use.
func (f *Table) addPostrouting(c *nftables.Conn, t *nftables.Table, r Rules) {
	chain := c.AddChain(&nftables.Chain{
		Table: t, Name: "postrouting", Type: nftables.ChainTypeNAT,
		Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource,
	})
	add := func(parts ...[]expr.Any) {
		c.AddRule(&nftables.Rule{Table: t, Chain: chain, Exprs: rule(parts...)})
	}
	toPods, elsewhere := f.inGroup(expr.MetaKeyOIFGROUP, expr.CmpOpEq), f.inGroup(expr.MetaKeyOIFGROUP, expr.CmpOpNeq)
	notLoopback := meta(expr.MetaKeyOIFNAME, expr.CmpOpNeq, padded("lo")...)
	for _, gw := range r.Gateways {
		// The links have no address of their own, so that there is none to masquerade with.
		asHost := []expr.Any{
			&expr.Immediate{Register: reg1, Data: gw.AsSlice()},
			&expr.NAT{Type: expr.NATTypeSourceNAT, Family: uint32(FamilyOf(gw).proto), RegAddrMin: reg1},
		}
		if gw.Is4() {
			add(IPv4.is(), IPv4.within(IPv4.src, loopback4), toPods, asHost)
		}
		for _, s := range r.Subnets {
			if fam := FamilyOf(s.Addr()); fam == FamilyOf(gw) {
				add(fam.is(), fam.within(fam.src, s), toPods, ctBits(expr.CtKeySTATUS, ctDNAT), asHost)
			}
		}
	}
	for _, s := range r.Subnets {
		fam := FamilyOf(s.Addr())
		// What the host sends to its own address in the range stays as it is: an answer to
		// 127.0.0.1, which masquerading chooses there, would not come back.
		add(fam.is(), fam.within(fam.src, s), elsewhere, notLoopback, []expr.Any{&expr.Masq{}})
	}
}

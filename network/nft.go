package network

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// firewall is the built-in network's nftables table. Its name is a setting, so that two daemons on
// a host do not meet. Its rules do not change with the pods; what a pod has are elements:
//
//	table inet coracle0 {
//	  set pods4 { type ifname . ether_addr . ipv4_addr }      # pods6: the same for IPv6
//	  map ports4     { type inet_proto . inet_service : ipv4_addr . inet_service }
//	  map addrports4 { type ipv4_addr . inet_proto . inet_service : ipv4_addr . inet_service }
//	  map ports6, addrports6: the same for IPv6
//	  set peers4 { type ipv4_addr; flags interval }            # peers6: the same for IPv6
//	  chain sources { type filter hook prerouting priority -450
//	    iifgroup != PODS iifname != lo ip saddr 10.85.0.0/16 drop   # only pods have pods' addresses
//	    iifgroup != PODS return
//	    ip daddr 127.0.0.0/8 drop                              # see route_localnet in sysctl.go
//	    iifname . ether saddr . ip saddr @pods4 return
//	    ip saddr 0.0.0.0 ip daddr 255.255.255.255 udp dport 67 return
//	    icmpv6 type { nd-router-solicit … nd-redirect } drop   # neighbours are permanent, and pods are no routers
//	    iifname . ether saddr . ip6 saddr @pods6 return
//	    ip6 saddr fe80::/10 return                             # the host does not forward it
//	    drop }
//	  chain forward { type filter hook forward priority filter
//	    iifgroup PODS return
//	    oifgroup PODS goto to_pods
//	    ct status dnat return                                  # a Service's connection to another node
//	    iifname @uplinks4 oifname @uplinks4 drop }             # see forwarding.go
//	  chain to_pods {
//	    ct state established,related return
//	    ct status dnat return
//	    ip saddr 10.1.0.0/16 return                            # Config.AllowFrom
//	    ip saddr @peers4 return                                # other nodes: see peers.go
//	    drop }
//	  chain prerouting { type nat hook prerouting priority dstnat; fib daddr type local jump hostports }
//	  chain output     { type nat hook output priority dstnat; fib daddr type local jump hostports }
//	  chain hostports {
//	    dnat ip  to ip daddr . meta l4proto . th dport map @addrports4
//	    dnat ip  to meta l4proto . th dport map @ports4
//	    …and for ip6, ::1 left out }
//	  chain postrouting { type nat hook postrouting priority srcnat
//	    ip saddr 10.85.0.0/16 oifgroup != PODS oifname != lo masquerade         # pods to elsewhere
//	    ip saddr 127.0.0.0/8 oifgroup PODS snat to 10.85.0.1                    # the host's own localhost:port
//	    ip saddr 10.85.0.0/16 oifgroup PODS ct status dnat snat to 10.85.0.1 }  # a pod to a host port of a pod
//	}
//
// PODS is the group of the pods' links (linkGroup). It accepts nothing: where another table drops
// forwarded packets (firewalld, a DROP policy by docker), the operator must let the pods' ranges
// through there.
type firewall struct {
	name string

	mu   sync.Mutex
	conn *nftables.Conn // nil until needed
}

// ruleset is what the table is made of.
type ruleset struct {
	subnets  []netip.Prefix // of pods
	gateways []netip.Addr
	allowed  []netip.Prefix // see Config.AllowFrom
	peers    []netip.Prefix // see peers.go
	// uplinks are the interfaces between which nothing is forwarded, by family; nil if anything may
	// be.
	uplinks map[family][]string
	bridge  bool              // pods of an earlier release are on a bridge
	pods    func() []podEntry // asked when nothing else can change the table
}

// podEntry is what the table knows of a pod.
type podEntry struct {
	link  string
	mac   net.HardwareAddr
	ips   []netip.Addr
	ports []portEntry
}

// portEntry is one host port with the pod's address of one family.
type portEntry struct {
	hostPort
	pod netip.Addr
}

// transaction sends what build adds as one. The socket is kept: when one is closed
// the kernel first waits for whatever it has still to free, 10 ms here (6.18).
func (f *firewall) transaction(build func(*nftables.Conn) error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.conn == nil {
		c, err := nftables.New(nftables.AsLasting())
		if err != nil {
			return fmt.Errorf("open nftables: %w", err)
		}
		f.conn = c
	}
	err := build(f.conn)
	if err == nil {
		err = f.conn.Flush()
	}
	if err != nil {
		f.closeLocked() // with what is queued, or was not read
		return fmt.Errorf("nftables table %s: %w", f.name, err)
	}
	return nil
}

func (f *firewall) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closeLocked()
}

func (f *firewall) closeLocked() {
	if f.conn != nil {
		_ = f.conn.CloseLasting()
		f.conn = nil
	}
}

func (f *firewall) table() *nftables.Table {
	return &nftables.Table{Name: f.name, Family: nftables.TableFamilyINet}
}

// replace makes the table again, in one transaction: no one sees it half made, and
// connections that are translated already stay so.
func (f *firewall) replace(r ruleset) error {
	return f.transaction(func(c *nftables.Conn) error {
		t := f.table()
		renewTable(c, t)
		elements := elementsOf(r.pods())
		for _, s := range f.sets() {
			if err := c.AddSet(s, elements[s.Name]); err != nil {
				return fmt.Errorf("set %s: %w", s.Name, err)
			}
		}
		f.addSources(c, t, r)
		if err := f.addForward(c, t, r); err != nil {
			return err
		}
		f.addHostPorts(c, t)
		f.addPostrouting(c, t, r)
		return nil
	})
}

// renewTable has a transaction begin with an empty table.
func renewTable(c *nftables.Conn, t *nftables.Table) {
	c.AddTable(t) // so that there is one to delete
	c.DelTable(t)
	c.AddTable(t)
}

// exists reports whether the table is there, as far as can be told.
func (f *firewall) exists() bool {
	c, err := nftables.New()
	if err != nil {
		return true
	}
	_, err = c.ListTableOfFamily(f.name, nftables.TableFamilyINet)
	return !errors.Is(err, unix.ENOENT)
}

// dropsForwarded returns the chains of other tables that drop every forwarded packet
// they do not accept, as far as can be told.
func (f *firewall) dropsForwarded() []*nftables.Chain {
	c, err := nftables.New()
	if err != nil {
		return nil
	}
	chains, err := c.ListChains()
	if err != nil {
		return nil
	}
	return slices.DeleteFunc(chains, func(ch *nftables.Chain) bool {
		return ch.Hooknum == nil || *ch.Hooknum != *nftables.ChainHookForward ||
			ch.Policy == nil || *ch.Policy != nftables.ChainPolicyDrop ||
			ch.Table.Family != nftables.TableFamilyINet && ch.Table.Family != nftables.TableFamilyIPv4 && ch.Table.Family != nftables.TableFamilyIPv6
	})
}

// remove deletes the table, and the bridge table of earlier releases. Missing tables are not an
// error.
func (f *firewall) remove() error {
	return errors.Join(f.removeTable(f.table()), f.removeBridgeTable())
}

// removeBridgeTable deletes what earlier releases had for their bridge.
func (f *firewall) removeBridgeTable() error {
	err := f.removeTable(&nftables.Table{Name: f.name, Family: nftables.TableFamilyBridge})
	if errors.Is(err, unix.EOPNOTSUPP) { // a kernel without tables for bridges
		return nil
	}
	return err
}

func (f *firewall) removeTable(t *nftables.Table) error {
	return f.transaction(func(c *nftables.Conn) error {
		c.AddTable(t)
		c.DelTable(t)
		return nil
	})
}

// add and drop change what the table knows of a pod, all or nothing.
func (f *firewall) add(p podEntry) error {
	return f.change(elementsOf([]podEntry{p}), (*nftables.Conn).SetAddElements)
}

// drop ignores what is not there.
func (f *firewall) drop(p podEntry) error {
	elements := elementsOf([]podEntry{p})
	err := f.change(elements, (*nftables.Conn).SetDeleteElements)
	if !errors.Is(err, unix.ENOENT) {
		return err
	}
	// A transaction with one unknown element does nothing at all: one by one.
	var errs []error
	for set, list := range elements {
		for _, e := range list {
			err := f.change(map[string][]nftables.SetElement{set: {e}}, (*nftables.Conn).SetDeleteElements)
			if !errors.Is(err, unix.ENOENT) {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}

func (f *firewall) change(elements map[string][]nftables.SetElement,
	op func(*nftables.Conn, *nftables.Set, []nftables.SetElement) error,
) error {
	if len(elements) == 0 {
		return nil
	}
	return f.transaction(func(c *nftables.Conn) error {
		for _, s := range f.sets() {
			if len(elements[s.Name]) == 0 {
				continue
			}
			if err := op(c, s, elements[s.Name]); err != nil {
				return fmt.Errorf("set %s: %w", s.Name, err)
			}
		}
		return nil
	})
}

// sets are those whose elements change with the pods.
func (f *firewall) sets() []*nftables.Set {
	pods := func(name string, id uint32, addr nftables.SetDatatype) *nftables.Set {
		return &nftables.Set{
			Table: f.table(), Name: name, ID: id, Concatenation: true,
			KeyType: nftables.MustConcatSetType(nftables.TypeIFName, nftables.TypeEtherAddr, addr),
		}
	}
	return append(f.maps(), pods("pods4", 5, nftables.TypeIPAddr), pods("pods6", 6, nftables.TypeIP6Addr))
}

// maps are those of host ports.
func (f *firewall) maps() []*nftables.Set {
	mapOf := func(name string, id uint32, addr nftables.SetDatatype, key ...nftables.SetDatatype) *nftables.Set {
		return &nftables.Set{
			Table: f.table(), Name: name, ID: id, IsMap: true, Concatenation: true,
			KeyType:  nftables.MustConcatSetType(key...),
			DataType: nftables.MustConcatSetType(addr, nftables.TypeInetService),
		}
	}
	proto, port, ip4, ip6 := nftables.TypeInetProto, nftables.TypeInetService, nftables.TypeIPAddr, nftables.TypeIP6Addr
	return []*nftables.Set{
		mapOf("ports4", 1, ip4, proto, port),
		mapOf("ports6", 2, ip6, proto, port),
		mapOf("addrports4", 3, ip4, ip4, proto, port),
		mapOf("addrports6", 4, ip6, ip6, proto, port),
	}
}

// elementsOf sorts what the table knows of pods into its sets.
func elementsOf(pods []podEntry) map[string][]nftables.SetElement {
	elements := map[string][]nftables.SetElement{}
	for _, p := range pods {
		for _, ip := range p.ips {
			// Each field of a concatenation fills whole registers of 4 bytes.
			key := append(padded(p.link), p.mac...)
			key = append(key, 0, 0)
			key = append(key, ip.AsSlice()...)
			set := "pods" + familyOf(ip).suffix
			elements[set] = append(elements[set], nftables.SetElement{Key: key})
		}
		for set, list := range portElements(p.ports) {
			elements[set] = append(elements[set], list...)
		}
	}
	return elements
}

// padded is the name of an interface as the kernel compares it.
func padded(name string) []byte {
	b := make([]byte, unix.IFNAMSIZ)
	copy(b, name)
	return b
}

// portElements sorts host ports into the maps.
func portElements(ports []portEntry) map[string][]nftables.SetElement {
	elements := map[string][]nftables.SetElement{}
	for _, p := range ports {
		family := "4"
		if p.pod.Is6() {
			family = "6"
		}
		name, key := "ports"+family, []byte(nil)
		if p.IP.IsValid() {
			name, key = "addr"+name, p.IP.AsSlice()
		}
		key = append(key, protocols[p.Protocol], 0, 0, 0)
		key = appendPort(key, p.Port)
		elements[name] = append(elements[name], nftables.SetElement{Key: key, Val: appendPort(p.pod.AsSlice(), p.Target)})
	}
	return elements
}

// appendPort appends a port as a field of a concatenation, which fills 4 bytes.
func appendPort(b []byte, port uint16) []byte {
	return append(binary.BigEndian.AppendUint16(b, port), 0, 0)
}

// The first registers. A concatenation is made in adjacent ones: reg32(n) is the
// n-th of 4 bytes, and reg1 to reg4 are the same memory by 16 bytes.
const reg1 = uint32(unix.NFT_REG_1)

func reg32(n uint32) uint32 { return unix.NFT_REG32_00 + n }

// family describes how a protocol family looks in rules.
type family struct {
	proto    byte
	bits     int
	src, dst uint32 // offsets in the header
	suffix   string
}

var (
	ipv4 = family{proto: unix.NFPROTO_IPV4, bits: 32, src: 12, dst: 16, suffix: "4"}
	ipv6 = family{proto: unix.NFPROTO_IPV6, bits: 128, src: 8, dst: 24, suffix: "6"}
)

func familyOf(a netip.Addr) family {
	if a.Is4() {
		return ipv4
	}
	return ipv6
}

// words is the number of 4-byte registers that an address fills.
func (f family) words() uint32 { return uint32(f.bits / 32) }

func (f family) is() []expr.Any { return meta(expr.MetaKeyNFPROTO, expr.CmpOpEq, f.proto) }

// within matches the address at an offset of the header against a prefix.
func (f family) within(offset uint32, p netip.Prefix) []expr.Any {
	n := uint32(f.bits / 8)
	return []expr.Any{
		&expr.Payload{DestRegister: reg1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: n},
		&expr.Bitwise{SourceRegister: reg1, DestRegister: reg1, Len: n, Mask: ipNet(p.Addr(), p.Bits()).Mask, Xor: make([]byte, n)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg1, Data: p.Masked().Addr().AsSlice()},
	}
}

// group compares the group of a link.
func (f *firewall) group(key expr.MetaKey, op expr.CmpOp) []expr.Any {
	return meta(key, op, binary.NativeEndian.AppendUint32(nil, linkGroup(f.name))...)
}

// meta compares what is known of a packet next to its bytes.
func meta(key expr.MetaKey, op expr.CmpOp, want ...byte) []expr.Any {
	return []expr.Any{&expr.Meta{Key: key, Register: reg1}, &expr.Cmp{Op: op, Register: reg1, Data: want}}
}

func rule(parts ...[]expr.Any) []expr.Any {
	var all []expr.Any
	for _, p := range parts {
		all = append(all, p...)
	}
	return all
}

var (
	loopback4  = netip.MustParsePrefix("127.0.0.0/8")
	linkLocal6 = netip.MustParsePrefix("fe80::/10")
)

func verdict(kind expr.VerdictKind) []expr.Any { return []expr.Any{&expr.Verdict{Kind: kind}} }

var (
	drop = verdict(expr.VerdictDrop)
	pass = verdict(expr.VerdictReturn)
)

// payload matches bytes of a header.
func payload(base expr.PayloadBase, offset uint32, want ...byte) []expr.Any {
	return []expr.Any{
		&expr.Payload{DestRegister: reg1, Base: base, Offset: offset, Len: uint32(len(want))},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg1, Data: want},
	}
}

// addSources drops what pods send with a source that is not theirs, and what others send with pods'
// addresses. Neighbours are permanent, so neighbour discovery is dropped, too; the links ignore ARP
// (IFF_NOARP).
func (f *firewall) addSources(c *nftables.Conn, t *nftables.Table, r ruleset) {
	chain := c.AddChain(&nftables.Chain{
		Table: t, Name: "sources", Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityRef(beforeDefrag),
	})
	add := func(parts ...[]expr.Any) {
		c.AddRule(&nftables.Rule{Table: t, Chain: chain, Exprs: rule(parts...)})
	}
	for _, s := range r.subnets {
		fam := familyOf(s.Addr())
		add(f.group(expr.MetaKeyIIFGROUP, expr.CmpOpNeq), meta(expr.MetaKeyIIFNAME, expr.CmpOpNeq, padded("lo")...),
			fam.is(), fam.within(fam.src, s), drop)
	}
	add(f.group(expr.MetaKeyIIFGROUP, expr.CmpOpNeq), pass)
	add(ipv4.is(), ipv4.within(ipv4.dst, loopback4), drop)
	if r.bridge { // its pods share a link, so the link does not identify them
		add(meta(expr.MetaKeyIIFNAME, expr.CmpOpEq, padded(f.name)...), pass)
	}
	add(ipv4.is(), ipv4.own(), pass)
	add(ipv4.is(), ipv4.within(ipv4.src, netip.PrefixFrom(netip.IPv4Unspecified(), 32)),
		ipv4.within(ipv4.dst, netip.PrefixFrom(netip.AddrFrom4([4]byte{255, 255, 255, 255}), 32)),
		meta(expr.MetaKeyL4PROTO, expr.CmpOpEq, unix.IPPROTO_UDP),
		payload(expr.PayloadBaseTransportHeader, 2, 0, 67), pass) // BOOTP
	add(ipv6.is(), meta(expr.MetaKeyL4PROTO, expr.CmpOpEq, unix.IPPROTO_ICMPV6), []expr.Any{
		&expr.Payload{DestRegister: reg1, Base: expr.PayloadBaseTransportHeader, Offset: 0, Len: 1},
		&expr.Range{Op: expr.CmpOpEq, Register: reg1, FromData: []byte{routerSolicitation}, ToData: []byte{redirect}},
	}, drop)
	add(ipv6.is(), ipv6.own(), pass)
	add(ipv6.is(), ipv6.within(ipv6.src, linkLocal6), pass)
	add(drop)
}

// beforeDefrag is NF_IP_PRI_RAW_BEFORE_DEFRAG (linux/netfilter_ipv4.h): each fragment is checked. A
// pod could put its own fragment into a neighbour's packet otherwise.
const beforeDefrag = -450

// Neighbour discovery has the ICMPv6 types from routerSolicitation to redirect (RFC 4861, 4).
const routerSolicitation, redirect = 133, 137

// own matches a packet with the source of the pod whose link it comes by.
func (f family) own() []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: reg32(0)},
		&expr.Payload{DestRegister: reg32(4), Base: expr.PayloadBaseLLHeader, Offset: 6, Len: 6},
		&expr.Payload{DestRegister: reg32(6), Base: expr.PayloadBaseNetworkHeader, Offset: f.src, Len: uint32(f.bits / 8)},
		&expr.Lookup{SourceRegister: reg32(0), SetName: "pods" + f.suffix},
	}
}

// addForward keeps from the pods what they have not asked for.
func (f *firewall) addForward(c *nftables.Conn, t *nftables.Table, r ruleset) error {
	toPods := c.AddChain(&nftables.Chain{Table: t, Name: "to_pods"})
	add := func(chain *nftables.Chain, parts ...[]expr.Any) {
		c.AddRule(&nftables.Rule{Table: t, Chain: chain, Exprs: rule(parts...)})
	}
	add(toPods, ctBits(expr.CtKeySTATE, expr.CtStateBitESTABLISHED|expr.CtStateBitRELATED), pass)
	add(toPods, ctBits(expr.CtKeySTATUS, ctDNAT), pass)
	for _, s := range r.allowed {
		fam := familyOf(s.Addr())
		add(toPods, fam.is(), fam.within(fam.src, s), pass)
	}
	for _, fam := range []family{ipv4, ipv6} {
		s := f.peers(fam)
		if err := c.AddSet(s, peerElements(r.peers, fam)); err != nil {
			return fmt.Errorf("set %s: %w", s.Name, err)
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
	add(forward, f.group(expr.MetaKeyIIFGROUP, expr.CmpOpEq), pass)
	add(forward, f.group(expr.MetaKeyOIFGROUP, expr.CmpOpEq), []expr.Any{&expr.Verdict{Kind: expr.VerdictGoto, Chain: toPods.Name}})
	add(forward, ctBits(expr.CtKeySTATUS, ctDNAT), pass)
	for _, fam := range []family{ipv4, ipv6} {
		names, closed := r.uplinks[fam]
		if !closed {
			continue
		}
		s := f.uplinks(fam)
		if err := c.AddSet(s, nameElements(names)); err != nil {
			return fmt.Errorf("set %s: %w", s.Name, err)
		}
		isUplink := func(key expr.MetaKey) []expr.Any {
			return []expr.Any{&expr.Meta{Key: key, Register: reg1}, &expr.Lookup{SourceRegister: reg1, SetName: s.Name, SetID: s.ID}}
		}
		add(forward, fam.is(), isUplink(expr.MetaKeyIIFNAME), isUplink(expr.MetaKeyOIFNAME), drop)
	}
	return nil
}

// uplinks is the set of interfaces between which the host forwards nothing of a family.
func (f *firewall) uplinks(fam family) *nftables.Set {
	return &nftables.Set{Table: f.table(), Name: "uplinks" + fam.suffix, ID: 10 + uint32(fam.proto), KeyType: nftables.TypeIFName}
}

// setUplinks changes the interfaces between which nothing is forwarded.
func (f *firewall) setUplinks(closed map[family][]string) error {
	return f.transaction(func(c *nftables.Conn) error {
		for fam, names := range closed {
			s := f.uplinks(fam)
			c.FlushSet(s)
			if err := c.SetAddElements(s, nameElements(names)); err != nil {
				return fmt.Errorf("set %s: %w", s.Name, err)
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

const ctDNAT = 1 << 5 // IPS_DST_NAT (linux/netfilter/nf_conntrack_common.h)

// ctBits matches a connection that has one of the bits.
func ctBits(key expr.CtKey, bits uint32) []expr.Any {
	return []expr.Any{
		&expr.Ct{Key: key, Register: reg1},
		&expr.Bitwise{SourceRegister: reg1, DestRegister: reg1, Len: 4, Mask: binary.NativeEndian.AppendUint32(nil, bits), Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: reg1, Data: make([]byte, 4)},
	}
}

func (f *firewall) addHostPorts(c *nftables.Conn, t *nftables.Table) {
	ports := c.AddChain(&nftables.Chain{Table: t, Name: "hostports"})
	for _, fam := range []family{ipv4, ipv6} {
		if fam == ipv6 {
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
			Table: t, Name: hook.name, Type: nftables.ChainTypeNAT, Hooknum: hook.num, Priority: nftables.ChainPriorityNATDest,
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

// dnat looks the protocol and port up in a map, after n words of key that are in
// registers already, and sends the packet to what it finds; else it goes on.
func (f family) dnat(mapName string, n uint32) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg32(n)},
		&expr.Payload{DestRegister: reg32(n + 1), Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Lookup{SourceRegister: reg32(0), DestRegister: reg32(0), IsDestRegSet: true, SetName: mapName + f.suffix},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(f.proto), RegAddrMin: reg32(0), RegProtoMin: reg32(f.words())},
	}
}

// addPostrouting gives packets the host's address where the pod's own, or loopback, would be no
// use.
func (f *firewall) addPostrouting(c *nftables.Conn, t *nftables.Table, r ruleset) {
	chain := c.AddChain(&nftables.Chain{
		Table: t, Name: "postrouting", Type: nftables.ChainTypeNAT,
		Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource,
	})
	add := func(parts ...[]expr.Any) {
		c.AddRule(&nftables.Rule{Table: t, Chain: chain, Exprs: rule(parts...)})
	}
	toPods, elsewhere := f.group(expr.MetaKeyOIFGROUP, expr.CmpOpEq), f.group(expr.MetaKeyOIFGROUP, expr.CmpOpNeq)
	notLoopback := meta(expr.MetaKeyOIFNAME, expr.CmpOpNeq, padded("lo")...)
	for _, gw := range r.gateways {
		// The links have no address of their own, so that there is none to masquerade with.
		asHost := []expr.Any{
			&expr.Immediate{Register: reg1, Data: gw.AsSlice()},
			&expr.NAT{Type: expr.NATTypeSourceNAT, Family: uint32(familyOf(gw).proto), RegAddrMin: reg1},
		}
		if gw.Is4() {
			add(ipv4.is(), ipv4.within(ipv4.src, loopback4), toPods, asHost)
		}
		for _, s := range r.subnets {
			if fam := familyOf(s.Addr()); fam == familyOf(gw) {
				add(fam.is(), fam.within(fam.src, s), toPods, ctBits(expr.CtKeySTATUS, ctDNAT), asHost)
			}
		}
	}
	for _, s := range r.subnets {
		fam := familyOf(s.Addr())
		// What the host sends to its own address in the range stays as it is: an answer to
		// 127.0.0.1, which masquerading chooses there, would not come back.
		add(fam.is(), fam.within(fam.src, s), elsewhere, notLoopback, []expr.Any{&expr.Masq{}})
	}
}

package network

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// firewall is the built-in bridge's nftables table (and one of another family, see keepReports), named like the bridge so that
// two daemons on a host do not meet. Its rules never change with the pods; a
// pod's host ports are elements of four maps:
//
//	table inet coracle0 {
//	  map ports4     { type inet_proto . inet_service : ipv4_addr . inet_service }
//	  map addrports4 { type ipv4_addr . inet_proto . inet_service : ipv4_addr . inet_service }
//	  map ports6, addrports6: the same for IPv6
//	  chain guard { type filter hook prerouting priority raw
//	    iifname coracle0 ip daddr 127.0.0.0/8 drop }      # see route_localnet in sysctl.go
//	  chain prerouting { type nat hook prerouting priority dstnat; fib daddr type local jump hostports }
//	  chain output     { type nat hook output priority dstnat; fib daddr type local jump hostports }
//	  chain hostports {
//	    dnat ip  to ip daddr . meta l4proto . th dport map @addrports4
//	    dnat ip  to meta l4proto . th dport map @ports4
//	    …and for ip6, ::1 left out }
//	  chain postrouting { type nat hook postrouting priority srcnat
//	    ip saddr 10.85.0.0/16 oifname != coracle0 masquerade     # pods to elsewhere
//	    ip saddr 127.0.0.0/8 oifname coracle0 masquerade         # the host's own localhost:port
//	    ip saddr 10.85.0.0/16 oifname coracle0 ct status dnat masquerade }  # a pod to a host port of a pod
//	}
//
// The last is by address, because a packet that br_netfilter shows to the hook has
// no input interface.
//
// It accepts nothing: where another table drops forwarded packets (firewalld, a
// DROP policy by docker), the operator must let the bridge through there.
type firewall struct {
	bridge string

	mu   sync.Mutex
	conn *nftables.Conn // nil until needed
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
		return fmt.Errorf("nftables table %s: %w", f.bridge, err)
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
	return &nftables.Table{Name: f.bridge, Family: nftables.TableFamilyINet}
}

// replace makes the table anew, in one transaction: nobody sees it half made, and
// connections that are translated already stay so.
func (f *firewall) replace(subnets []netip.Prefix, ports []portEntry) error {
	return f.transaction(func(c *nftables.Conn) error {
		t := f.table()
		renewTable(c, t)
		elements := portElements(ports)
		for _, m := range f.maps() {
			if err := c.AddSet(m, elements[m.Name]); err != nil {
				return fmt.Errorf("map %s: %w", m.Name, err)
			}
		}
		f.addGuard(c, t)
		f.addHostPorts(c, t)
		f.addMasquerade(c, t, subnets)
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
	_, err = c.ListTableOfFamily(f.bridge, nftables.TableFamilyINet)
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

// remove deletes the tables; none there is fine.
func (f *firewall) remove() error {
	errs := []error{f.removeTable(f.table())}
	if err := f.removeTable(f.bridgeTable()); !errors.Is(err, unix.EOPNOTSUPP) { // a kernel without tables for bridges
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func (f *firewall) removeTable(t *nftables.Table) error {
	return f.transaction(func(c *nftables.Conn) error {
		c.AddTable(t)
		c.DelTable(t)
		return nil
	})
}

// addPorts and removePorts change a pod's host ports, all or none.
func (f *firewall) addPorts(ports []portEntry) error {
	return f.change(ports, (*nftables.Conn).SetAddElements)
}

// removePorts ignores what is not there.
func (f *firewall) removePorts(ports []portEntry) error {
	err := f.change(ports, (*nftables.Conn).SetDeleteElements)
	if !errors.Is(err, unix.ENOENT) {
		return err
	}
	// A transaction with one unknown element does nothing at all: one by one.
	var errs []error
	for _, p := range ports {
		if err := f.change([]portEntry{p}, (*nftables.Conn).SetDeleteElements); !errors.Is(err, unix.ENOENT) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func (f *firewall) change(ports []portEntry, op func(*nftables.Conn, *nftables.Set, []nftables.SetElement) error) error {
	if len(ports) == 0 {
		return nil
	}
	return f.transaction(func(c *nftables.Conn) error {
		elements := portElements(ports)
		for _, m := range f.maps() {
			if len(elements[m.Name]) == 0 {
				continue
			}
			if err := op(c, m, elements[m.Name]); err != nil {
				return fmt.Errorf("map %s: %w", m.Name, err)
			}
		}
		return nil
	})
}

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

func ifName(key expr.MetaKey, op expr.CmpOp, name string) []expr.Any {
	padded := make([]byte, unix.IFNAMSIZ)
	copy(padded, name)
	return meta(key, op, padded...)
}

// meta compares what is known of a packet beside its bytes.
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

var loopback4 = netip.MustParsePrefix("127.0.0.0/8")

func (f *firewall) addGuard(c *nftables.Conn, t *nftables.Table) {
	guard := c.AddChain(&nftables.Chain{
		Table: t, Name: "guard", Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityRaw,
	})
	c.AddRule(&nftables.Rule{Table: t, Chain: guard, Exprs: rule(
		ifName(expr.MetaKeyIIFNAME, expr.CmpOpEq, f.bridge),
		ipv4.is(), ipv4.within(ipv4.dst, loopback4),
		[]expr.Any{&expr.Verdict{Kind: expr.VerdictDrop}},
	)})
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

func (f *firewall) addMasquerade(c *nftables.Conn, t *nftables.Table, subnets []netip.Prefix) {
	chain := c.AddChain(&nftables.Chain{
		Table: t, Name: "postrouting", Type: nftables.ChainTypeNAT,
		Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource,
	})
	add := func(parts ...[]expr.Any) {
		parts = append(parts, []expr.Any{&expr.Masq{}})
		c.AddRule(&nftables.Rule{Table: t, Chain: chain, Exprs: rule(parts...)})
	}
	add(ipv4.is(), ipv4.within(ipv4.src, loopback4), ifName(expr.MetaKeyOIFNAME, expr.CmpOpEq, f.bridge))
	dnat := make([]byte, 4)
	binary.NativeEndian.PutUint32(dnat, 1<<5) // IPS_DST_NAT
	translated := []expr.Any{
		&expr.Ct{Key: expr.CtKeySTATUS, Register: reg1},
		&expr.Bitwise{SourceRegister: reg1, DestRegister: reg1, Len: 4, Mask: dnat, Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: reg1, Data: make([]byte, 4)},
	}
	for _, s := range subnets {
		fam := familyOf(s.Addr())
		from := rule(fam.is(), fam.within(fam.src, s))
		add(from, ifName(expr.MetaKeyOIFNAME, expr.CmpOpNeq, f.bridge))
		add(from, ifName(expr.MetaKeyOIFNAME, expr.CmpOpEq, f.bridge), translated)
	}
}

package nodes

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// The nodes reach other machines as this machine's own pods do: from its address. Each family has a
// table. For IPv6, coracled turns forwarding on if pods have IPv6, and keeps networks apart.
//
//	table ip coracle-nodes-6443 {   # and ip6
//	  chain forward {        # IPv4 only, if this machine forwarded nothing before; Remove leaves it
//	    ct status & dnat == 0 iif UPLINK oif UPLINK drop }
//	  chain postrouting { type nat hook postrouting priority srcnat
//	    ip saddr 10.84.0.0/24 iifname nodes6443 oifname != nodes6443 oifname != "cor*" masquerade }
//	}
//
// What goes to this machine's pods ("cor*": the names of their links and of tunnels) keeps its
// source.

// forwarding is the kernel's switch.
const forwarding = "/proc/sys/net/ipv4/ip_forward"

// table is the cluster's for IPv4. Its chain forward is the record that Make has turned forwarding
// on: both are gone after a reboot.
func (w Network) table() *nftables.Table {
	return &nftables.Table{Name: "coracle-nodes-" + strconv.Itoa(w.Cluster), Family: nftables.TableFamilyIPv4}
}

// table6 is the cluster's for IPv6.
func (w Network) table6() *nftables.Table {
	return &nftables.Table{Name: w.table().Name, Family: nftables.TableFamilyIPv6}
}

// translated is IPS_DST_NAT, a bit of a connection's status.
const translated = 1 << 5

const guard, translating = "forward", "postrouting"

// podLinks is how the names of pods' links begin, and those of tunnels to other nodes: vethPrefix
// in package network.
const podLinks = "cor"

// guarded says whether Make has turned forwarding on.
func (w Network) guarded(c *nftables.Conn) bool {
	_, err := c.ListChain(w.table(), guard)
	return err == nil
}

// Forwards says whether Make has turned forwarding on, now or before.
func (w Network) Forwards() (bool, error) {
	c, err := nftables.New()
	return err == nil && w.guarded(c), err
}

// translate makes the table, and turns forwarding on after that.
func (w Network) translate() error {
	c, err := nftables.New()
	if err != nil {
		return err
	}
	on, err := os.ReadFile(forwarding)
	if err != nil {
		return err
	}
	guards := w.guarded(c) || bytes.Equal(bytes.TrimSpace(on), []byte("0"))
	t6 := w.table6()
	_, err = c.ListTableOfFamily(t6.Name, t6.Family)
	had6 := err == nil
	t := w.table()
	c.AddTable(t)
	c.DelTable(t) // of before
	c.AddTable(t)
	if guards {
		if err := keepApart(c, t); err != nil {
			return err
		}
	}
	w.masquerade(c, t)
	has6 := slices.ContainsFunc(w.Prefixes, func(p netip.Prefix) bool { return p.Addr().Is6() })
	if had6 || has6 { // a kernel without IPv6 may refuse the table
		c.AddTable(t6)
		c.DelTable(t6) // of before, when the networks may have been others
	}
	if has6 {
		c.AddTable(t6)
		w.masquerade(c, t6)
	}
	if err := c.Flush(); err != nil {
		return fmt.Errorf("nftables table %s: %w", t.Name, err)
	}
	return os.WriteFile(forwarding, []byte("1"), 0o644)
}

// masquerade gives what leaves this machine for others its address, in a table of one family.
func (w Network) masquerade(c *nftables.Conn, t *nftables.Table) {
	post := c.AddChain(&nftables.Chain{
		Name: translating, Table: t, Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookPostrouting,
		Priority: nftables.ChainPriorityNATSource,
	})
	for _, p := range w.Prefixes {
		if p.Addr().Is4() != (t.Family == nftables.TableFamilyIPv4) {
			continue
		}
		from := fromNetwork(p)
		c.AddRule(&nftables.Rule{Table: t, Chain: post, Exprs: append(
			from,
			&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: name(w.Bridge())},
			&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: 1},
			&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: name(w.Bridge())},
			&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: []byte(podLinks)},
			&expr.Masq{},
		)})
	}
}

// fromNetwork matches packets from a network.
func fromNetwork(p netip.Prefix) []expr.Any {
	source, size := uint32(12), uint32(4) // in the header of IPv4
	if p.Addr().Is6() {
		source, size = 8, 16
	}
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: source, Len: size},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: size, Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen()), Xor: make([]byte, size)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: p.Masked().Addr().AsSlice()},
	}
}

// keepApart keeps this machine from forwarding between its own networks, which it did not before.
// Networks that come later are coracled's to keep apart: package forwarded tells it.
func keepApart(c *nftables.Conn, t *nftables.Table) error {
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Dst: nil}, netlink.RT_FILTER_DST)
	if err != nil {
		return err
	}
	chain := c.AddChain(&nftables.Chain{
		Name: guard, Table: t, Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookForward, Priority: nftables.ChainPriorityFilter,
	})
	for _, in := range routes {
		for _, out := range routes {
			c.AddRule(&nftables.Rule{Table: t, Chain: chain, Exprs: []expr.Any{
				// Services' connections to other nodes were translated.
				&expr.Ct{Key: expr.CtKeySTATUS, Register: 1},
				&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: binaryutil.NativeEndian.PutUint32(translated), Xor: make([]byte, 4)},
				&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: make([]byte, 4)},
				&expr.Meta{Key: expr.MetaKeyIIF, Register: 1},
				&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.NativeEndian.PutUint32(uint32(in.LinkIndex))},
				&expr.Meta{Key: expr.MetaKeyOIF, Register: 1},
				&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.NativeEndian.PutUint32(uint32(out.LinkIndex))},
				&expr.Verdict{Kind: expr.VerdictDrop},
			}})
		}
	}
	return nil
}

// translateNothing removes the tables, but for the guard. Forwarding stays on: others may have come
// to count on it, such as another cluster or another container engine. The guard goes with it, at
// the next reboot.
func (w Network) translateNothing() error {
	c, err := nftables.New()
	if err != nil {
		return err
	}
	c.AddTable(w.table6()) // so that there is one to delete
	c.DelTable(w.table6())
	if err := ignore(c.Flush(), unix.EAFNOSUPPORT, unix.EOPNOTSUPP); err != nil {
		return err
	}
	if w.guarded(c) {
		c.DelChain(&nftables.Chain{Name: translating, Table: w.table()})
		return ignore(c.Flush(), unix.ENOENT)
	}
	c.DelTable(w.table())
	return ignore(c.Flush(), unix.ENOENT, unix.EINVAL)
}

// name is a link's name as the kernel compares it.
func name(s string) []byte { return append([]byte(s), make([]byte, unix.IFNAMSIZ-len(s))...) }

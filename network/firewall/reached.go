package firewall

import (
	"errors"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// reachedName is the name of the set of links, and of the chain that fills it.
const reachedName = "reached"

// first is the first priority that a nat chain may have. Once a connection has its source, the
// kernel asks no further chains.
const first = -199 // NF_IP_PRI_CONNTRACK + 1 (linux/netfilter_ipv4.h)

// addReached has the kernel note by which links connections to pods are made. A nat chain sees only
// the first packet of each. Multicast goes by all links, and is no connection to a pod.
func (f *Table) addReached(c *nftables.Conn, t *nftables.Table) {
	chain := c.AddChain(&nftables.Chain{
		Table: t, Name: reachedName, Type: nftables.ChainTypeNAT,
		Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityRef(first),
	})
	add := func(parts ...[]expr.Any) {
		c.AddRule(&nftables.Rule{Table: t, Chain: chain, Exprs: rule(parts...)})
	}
	s := f.reached()
	add(f.inGroup(expr.MetaKeyOIFGROUP, expr.CmpOpNeq), pass)
	add(IPv4.is(), IPv4.within(IPv4.dst, multicast4), pass)
	add(IPv6.is(), IPv6.within(IPv6.dst, multicast6), pass)
	add([]expr.Any{
		&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: reg1},
		&expr.Dynset{SrcRegKey: reg1, SetName: s.Name, SetID: s.ID, Operation: unix.NFT_DYNSET_OP_ADD},
	})
}

var multicast4, multicast6 = netip.MustParsePrefix("224.0.0.0/4"), netip.MustParsePrefix("ff00::/8")

func (f *Table) reached() *nftables.Set {
	return &nftables.Set{Table: f.table(), Name: reachedName, ID: 7, KeyType: nftables.TypeIFName, Dynamic: true}
}

// Reached returns those of the links by which connections to pods were made, or which pods had when
// the table was made again. While another program has changed the table, it may not know all.
func (f *Table) Reached(links []string) (reached []string, err error) {
	err = f.transaction(func(c *nftables.Conn) error {
		// Without the set, no element would be there either.
		if _, err := c.GetSetByName(f.table(), reachedName); err != nil {
			return err
		}
		for _, l := range links {
			has, err := f.hasReached(l)
			if err != nil {
				return err
			}
			if has {
				reached = append(reached, l)
			}
		}
		return nil
	})
	return reached, err
}

// hasReached asks for one element. The library only has lists, which the kernel makes in parts: if
// the set is rearranged between two of them, elements are missing.
func (f *Table) hasReached(link string) (bool, error) {
	element := func(e *netlink.AttributeEncoder) error {
		e.Nested(unix.NFTA_SET_ELEM_KEY, func(k *netlink.AttributeEncoder) error {
			k.Bytes(unix.NFTA_DATA_VALUE, padded(link))
			return nil
		})
		return nil
	}
	request := netlink.NewAttributeEncoder()
	request.String(unix.NFTA_SET_ELEM_LIST_TABLE, f.name)
	request.String(unix.NFTA_SET_ELEM_LIST_SET, reachedName)
	request.Nested(unix.NFTA_SET_ELEM_LIST_ELEMENTS, func(list *netlink.AttributeEncoder) error {
		list.Nested(unix.NFTA_LIST_ELEM, element)
		return nil
	})
	attributes, err := request.Encode()
	if err != nil {
		return false, err
	}
	_, err = f.socket.Execute(netlink.Message{
		Header: netlink.Header{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETSETELEM, Flags: netlink.Request},
		Data:   append([]byte{unix.NFPROTO_INET, unix.NFNETLINK_V0, 0, 0}, attributes...), // struct nfgenmsg
	})
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	return err == nil, err
}

// DropReached forgets links that Reached returns. It ignores what is not there.
func (f *Table) DropReached(links []string) error {
	if len(links) == 0 {
		return nil
	}
	return f.drop(map[string][]nftables.SetElement{reachedName: nameElements(links)})
}

// Package proxy is what the node does with packets to the addresses of Services. It routes none yet: it
// rejects them.
//
// Without that they would leave by the default route, to whatever answers there, and a client would wait for
// its own timeout. A proxy that a user runs is not disturbed: it replaces the address before the rules here
// look at it, and an address that the node itself has is left alone.
package proxy

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Of linux/netfilter/nf_tables.h: what a sender is told is "connection refused".
const (
	rejectICMPX     = 2 // NFT_REJECT_ICMPX_UNREACH
	portUnreachable = 1 // NFT_REJECT_ICMPX_PORT_UNREACH
	ownerFlag       = 2 // NFT_TABLE_F_OWNER
)

// Rules are a table in the kernel. It is bound to the connection that made it: the kernel removes it when the
// process ends, however it ends. Before Linux 5.12 tables have no owner, and a killed process leaves its table.
type Rules struct {
	conn  *nftables.Conn
	table *nftables.Table
}

// Close removes the rules.
func (r *Rules) Close() error {
	r.conn.DelTable(r.table)
	return errors.Join(r.conn.Flush(), r.conn.CloseLasting())
}

// Reject has the kernel reject what this node and its pods send to services, the network of Services'
// addresses, until the rules are closed. They are a table of this name:
//
//	table inet NAME {
//	  flags owner
//	  chain output  { type filter hook output priority filter
//	    oifname != "lo" ip daddr 10.96.0.0/16 reject with icmpx port-unreachable }
//	  chain forward { type filter hook forward priority filter; the same }
//	}
func Reject(name string, services netip.Prefix) (*Rules, error) {
	var socket *netlink.Conn
	conn, err := nftables.New(nftables.AsLasting(), nftables.WithSockOptions(func(c *netlink.Conn) error {
		socket = c
		return nil
	}))
	if err != nil {
		return nil, fmt.Errorf("open nftables: %w", err)
	}
	rules := &Rules{conn, &nftables.Table{Name: name, Family: nftables.TableFamilyINet}}
	if err := rules.add(socket, services); err != nil {
		return nil, errors.Join(fmt.Errorf("nftables table %s: %w", name, err), conn.CloseLasting())
	}
	return rules, nil
}

func (r *Rules) add(socket *netlink.Conn, services netip.Prefix) error {
	r.conn.AddTable(r.table) // so that there is one to delete
	r.conn.DelTable(r.table) // one without an owner, which a killed process has left
	if err := r.conn.Flush(); err != nil {
		return err
	}
	if err := own(socket, r.table.Name); errors.Is(err, unix.EINVAL) { // Linux before 5.12
		r.conn.AddTable(r.table)
	} else if err != nil {
		return err
	}
	for name, hook := range map[string]*nftables.ChainHook{"output": nftables.ChainHookOutput, "forward": nftables.ChainHookForward} {
		chain := r.conn.AddChain(&nftables.Chain{
			Name: name, Table: r.table, Type: nftables.ChainTypeFilter, Hooknum: hook, Priority: nftables.ChainPriorityFilter,
		})
		r.conn.AddRule(&nftables.Rule{Table: r.table, Chain: chain, Exprs: rejecting(services)})
	}
	return r.conn.Flush()
}

// own adds a table that the kernel removes when socket is closed. The nftables package sends no flags of tables.
func own(socket *netlink.Conn, name string) error {
	attributes, err := netlink.MarshalAttributes([]netlink.Attribute{
		{Type: unix.NFTA_TABLE_NAME, Data: append([]byte(name), 0)},
		{Type: unix.NFTA_TABLE_FLAGS, Data: binary.BigEndian.AppendUint32(nil, ownerFlag)},
	})
	if err != nil {
		return err
	}
	message := func(kind int, flags netlink.HeaderFlags, family byte, resource uint16, data []byte) netlink.Message {
		header := binary.BigEndian.AppendUint16([]byte{family, unix.NFNETLINK_V0}, resource) // struct nfgenmsg
		return netlink.Message{
			Header: netlink.Header{Type: netlink.HeaderType(kind), Flags: netlink.Request | flags},
			Data:   append(header, data...),
		}
	}
	const newTable = unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_NEWTABLE
	_, err = socket.SendMessages([]netlink.Message{
		message(unix.NFNL_MSG_BATCH_BEGIN, 0, 0, unix.NFNL_SUBSYS_NFTABLES, nil),
		message(newTable, netlink.Create|netlink.Excl|netlink.Acknowledge, unix.NFPROTO_INET, 0, attributes),
		message(unix.NFNL_MSG_BATCH_END, 0, 0, unix.NFNL_SUBSYS_NFTABLES, nil),
	})
	if err != nil {
		return err
	}
	_, err = socket.Receive()
	return err
}

// rejecting rejects packets to services that leave by an interface.
func rejecting(services netip.Prefix) []expr.Any {
	proto, offset := byte(unix.NFPROTO_IPV4), uint32(16) // of the destination in the header
	if services.Addr().Is6() {
		proto, offset = unix.NFPROTO_IPV6, 24
	}
	mask := net.CIDRMask(services.Bits(), services.Addr().BitLen())
	size := uint32(len(mask))
	lo := make([]byte, unix.IFNAMSIZ)
	copy(lo, "lo")
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{proto}},
		&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: 1},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: lo},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: size},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: size, Mask: mask, Xor: make([]byte, size)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: services.Masked().Addr().AsSlice()},
		&expr.Reject{Type: rejectICMPX, Code: portUnreachable},
	}
}

package nodeaddr

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// table is bound to the connection that made it: the kernel removes it when the process ends, and
// lets no one else change or flush it (Linux 5.12).
type table struct {
	conn   *nftables.Conn
	socket *netlink.Conn // conn's
	table  *nftables.Table
}

// tableName is of the first address; nft's language has no colons in names.
func tableName(addrs []netip.Addr) string {
	return "coracle-addr-" + strings.ReplaceAll(addrs[0].String(), ":", "-")
}

// openTable opens a connection for a table of this name, and makes nothing yet.
func openTable(name string) (t *table, err error) {
	t = &table{table: &nftables.Table{Name: name, Family: nftables.TableFamilyINet}}
	t.conn, err = nftables.New(nftables.AsLasting(), nftables.WithSockOptions(func(c *netlink.Conn) error {
		t.socket = c
		return nil
	}))
	if err != nil {
		return nil, fmt.Errorf("open nftables: %w", err)
	}
	return t, nil
}

// replace makes the table, empty, in place of one without an owner, which a killed process has
// left.
func (t *table) replace() error {
	t.conn.AddTable(t.table) // so that there is one to delete
	t.conn.DelTable(t.table)
	if err := t.flush(); err != nil {
		return err
	}
	err := t.own()
	if errors.Is(err, unix.EINVAL) { // Linux before 5.12
		t.conn.AddTable(t.table)
		return nil
	}
	return err
}

// protocol is an address's network protocol in nftables.
func protocol(addr netip.Addr) byte {
	if addr.Is6() {
		return unix.NFPROTO_IPV6
	}
	return unix.NFPROTO_IPV4
}

// direction is which of a packet's addresses or ports is meant.
type direction uint32

const (
	source direction = iota
	destination
)

// address loads an address of packets of a protocol into register 1.
func address(protocol byte, d direction) []expr.Any {
	size, first := uint32(4), uint32(12) // where the source is in the header
	if protocol == unix.NFPROTO_IPV6 {
		size, first = 16, 8
	}
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{protocol}},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: first + size*uint32(d), Len: size},
	}
}

// isAddress matches packets from or to an address.
func isAddress(addr netip.Addr, d direction) []expr.Any {
	return append(address(protocol(addr), d), &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: addr.AsSlice()})
}

// isPort matches packets of a transport protocol from or to a port.
func isPort(transport byte, d direction, port uint16) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{transport}},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2 * uint32(d), Len: 2},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binary.BigEndian.AppendUint16(nil, port)},
	}
}

// flushLimit bounds the wait for the kernel's answers. To some errors, such as without nf_tables,
// it gives one answer for a transaction, and the nftables package waits for one to each message.
const flushLimit = 5 * time.Second

// flush sends what is queued as one transaction.
func (t *table) flush() error {
	if err := t.socket.SetDeadline(time.Now().Add(flushLimit)); err != nil {
		return err
	}
	return errors.Join(t.conn.Flush(), t.socket.SetDeadline(time.Time{}))
}

func (t *table) remove() error {
	t.conn.DelTable(t.table)
	return errors.Join(t.flush(), t.conn.CloseLasting())
}

// own adds the table so that the kernel removes it when the socket is closed. The nftables package
// sends no flags of tables.
func (t *table) own() error {
	const (
		ownerFlag = 2 // NFT_TABLE_F_OWNER of linux/netfilter/nf_tables.h
		newTable  = unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_NEWTABLE
	)
	attributes, err := netlink.MarshalAttributes([]netlink.Attribute{
		{Type: unix.NFTA_TABLE_NAME, Data: append([]byte(t.table.Name), 0)},
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
	if err := t.socket.SetDeadline(time.Now().Add(flushLimit)); err != nil {
		return err
	}
	_, err = t.socket.SendMessages([]netlink.Message{
		message(unix.NFNL_MSG_BATCH_BEGIN, 0, 0, unix.NFNL_SUBSYS_NFTABLES, nil),
		message(newTable, netlink.Create|netlink.Excl|netlink.Acknowledge, unix.NFPROTO_INET, 0, attributes),
		message(unix.NFNL_MSG_BATCH_END, 0, 0, unix.NFNL_SUBSYS_NFTABLES, nil),
	})
	if err != nil {
		return err
	}
	_, err = t.socket.Receive()
	return errors.Join(err, t.socket.SetDeadline(time.Time{}))
}

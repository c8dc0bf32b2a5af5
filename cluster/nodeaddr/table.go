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

// table drops what comes in by uplinks. It is bound to the connection that made it: the kernel removes
// it when the process ends, and lets no one else change or flush it (Linux 5.12):
//
//	table inet coracle-addr-10.96.0.10 {
//	  flags owner
//	  set uplinks { type iface_index; }
//	  chain prerouting { type filter hook prerouting priority raw;
//	    iif @uplinks ip daddr 10.96.0.10 drop
//	    iif @uplinks ip6 daddr fd00:96::a drop }
//	}
type table struct {
	conn    *nftables.Conn
	socket  *netlink.Conn // conn's
	table   *nftables.Table
	uplinks *nftables.Set
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

func newTable(addrs []netip.Addr, uplinks []uint32) (*table, error) {
	t, err := openTable(tableName(addrs))
	if err != nil {
		return nil, err
	}
	err = t.make(addrs, uplinks)
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EEXIST) {
		err = ErrHeld
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("nftables table %s: %w", t.table.Name, err), t.conn.CloseLasting())
	}
	return t, nil
}

// replace makes the table, empty, in place of one without an owner, which a killed process has left.
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

func (t *table) make(addrs []netip.Addr, uplinks []uint32) error {
	if err := t.replace(); err != nil {
		return err
	}
	t.uplinks = &nftables.Set{Table: t.table, Name: "uplinks", KeyType: nftables.TypeIFIndex}
	if err := t.conn.AddSet(t.uplinks, elements(uplinks)); err != nil {
		return err
	}
	chain := t.conn.AddChain(&nftables.Chain{
		Name: "prerouting", Table: t.table, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityRaw,
	})
	for _, addr := range addrs {
		rule := append([]expr.Any{
			&expr.Meta{Key: expr.MetaKeyIIF, Register: 1},
			&expr.Lookup{SourceRegister: 1, SetName: t.uplinks.Name, SetID: t.uplinks.ID},
		}, isTo(addr)...)
		t.conn.AddRule(&nftables.Rule{Table: t.table, Chain: chain, Exprs: append(rule, &expr.Verdict{Kind: expr.VerdictDrop})})
	}
	return t.flush()
}

// protocol is an address's network protocol in nftables.
func protocol(addr netip.Addr) byte {
	if addr.Is6() {
		return unix.NFPROTO_IPV6
	}
	return unix.NFPROTO_IPV4
}

// isTo matches packets to an address.
func isTo(addr netip.Addr) []expr.Any {
	offset := uint32(16) // of the destination in the header
	if addr.Is6() {
		offset = 24
	}
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{protocol(addr)}},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: uint32(addr.BitLen() / 8)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: addr.AsSlice()},
	}
}

func elements(links []uint32) []nftables.SetElement {
	var all []nftables.SetElement
	for _, link := range links {
		all = append(all, nftables.SetElement{Key: binary.NativeEndian.AppendUint32(nil, link)})
	}
	return all
}

// setUplinks replaces the uplinks in one transaction.
func (t *table) setUplinks(links []uint32) error {
	t.conn.FlushSet(t.uplinks)
	if err := t.conn.SetAddElements(t.uplinks, elements(links)); err != nil {
		return err
	}
	if err := t.flush(); err != nil {
		return fmt.Errorf("nftables table %s: %w", t.table.Name, err)
	}
	return nil
}

// flushLimit bounds the wait for the kernel's answers. To some errors, such as without nf_tables, it gives one answer
// for a transaction, and the nftables package waits for one to each message.
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

// own adds the table so that the kernel removes it when the socket is closed. The nftables package sends no flags of
// tables.
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

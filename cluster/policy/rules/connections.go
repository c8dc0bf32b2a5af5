package rules

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"time"

	"github.com/mdlayher/netlink"
	rtnetlink "github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// answerLimit is for one answer of the connection tracker.
const answerLimit = 30 * time.Second

// addressTries is how often the node's addresses are listed that change meanwhile.
const addressTries = 5

// flow is an entry of the connection tracker.
type flow struct {
	Connection
	family byte
	tuple  []byte // of the first direction, as the kernel wrote it
	id     []byte
	zone   []byte // nil: the default one
}

// Cutter deletes entries of the connection tracker, once. Any goroutine may use it, while that of
// the Table goes on.
type Cutter struct {
	table     *Table
	allowed   func(Connection) bool // called with the table's mu held
	addresses *rtnetlink.Handle
	entries   *nl.NetlinkSocket // lists them
	deletions *netlink.Conn
}

// Cutter opens what one Cut needs, in the network namespace of its thread.
func (t *Table) Cutter() (*Cutter, error) {
	c := &Cutter{table: t, allowed: t.state.Allowed}
	var err error
	if c.addresses, err = rtnetlink.NewHandle(unix.NETLINK_ROUTE); err == nil {
		c.entries, err = nl.GetNetlinkSocketAt(netns.None(), netns.None(), unix.NETLINK_NETFILTER)
	}
	if err == nil {
		err = c.entries.SetReceiveTimeout(&unix.Timeval{Sec: int64(answerLimit / time.Second)})
	}
	if err == nil {
		c.deletions, err = netlink.Dial(unix.NETLINK_NETFILTER, nil)
	}
	if err != nil {
		c.close()
		return nil, fmt.Errorf("open the connection tracker: %w", err)
	}
	return c, nil
}

func (c *Cutter) close() {
	c.interrupt()
	if c.addresses != nil {
		c.addresses.Close()
	}
}

// interrupt ends waits for the connection tracker.
func (c *Cutter) interrupt() {
	if c.entries != nil {
		c.entries.Close()
	}
	if c.deletions != nil {
		_ = c.deletions.Close()
	}
}

// Cut deletes the entries of connections from or to one of the pods that the rules forbid, and all
// of those from or to an address that is gone, except connections with the node itself. Each is
// decided by the rules of that moment. The kernel must have them already, otherwise the next packet
// makes the entry again.
//
// The rules alone stop what the first end sends; the entry lets the other end's replies pass.
func (c *Cutter) Cut(ctx context.Context, pods, gone map[netip.Addr]bool) (cut int, err error) {
	defer c.close()
	defer context.AfterFunc(ctx, c.interrupt)()
	local, err := c.localAddresses()
	if err != nil {
		return 0, fmt.Errorf("cut connections: list the node's addresses: %w", err)
	}
	var failed error
	err = c.list(func(message []byte) bool {
		f, ok := parseFlow(message)
		if !ok {
			return true
		}
		source, destination := f.Source.Addr(), f.Destination.Addr()
		ended := gone[source] || gone[destination]
		if !ended && !pods[source] && !pods[destination] || local[source] || local[destination] {
			return true
		}
		deleted, err := c.end(&f, ended)
		if err != nil {
			failed = fmt.Errorf("cut connection from %s to %s: %w", f.Source, f.Destination, err)
		}
		if deleted {
			cut++
		}
		return ctx.Err() == nil
	})
	switch {
	case ctx.Err() != nil:
		return cut, fmt.Errorf("cut connections: %w", context.Cause(ctx))
	case err != nil:
		return cut, fmt.Errorf("cut connections: list the connection tracker's entries: %w", err)
	}
	return cut, failed
}

// end deletes an entry, unless the rules allow the connection and it is not to be deleted in any
// case. The rules do not change before it is deleted: the kernel answers this at once.
func (c *Cutter) end(f *flow, inAnyCase bool) (deleted bool, err error) {
	c.table.mu.RLock()
	defer c.table.mu.RUnlock()
	if !inAnyCase && c.allowed(f.Connection) {
		return false, nil
	}
	err = f.delete(c.deletions)
	if errors.Is(err, unix.ENOENT) { // it has just ended
		return false, nil
	}
	return err == nil, err
}

func (c *Cutter) localAddresses() (map[netip.Addr]bool, error) {
	var all []rtnetlink.Addr
	var err error
	for range addressTries {
		if all, err = c.addresses.AddrList(nil, rtnetlink.FAMILY_ALL); !errors.Is(err, rtnetlink.ErrDumpInterrupted) {
			break
		}
	}
	if err != nil {
		return nil, err
	}
	local := map[netip.Addr]bool{}
	for _, each := range all {
		a, _ := netip.AddrFromSlice(each.IP)
		local[a.Unmap()] = true
	}
	return local, nil
}

// list calls f with each entry as it comes, until f returns false.
func (c *Cutter) list(f func(message []byte) bool) error {
	request := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_CTNETLINK<<8|nl.IPCTNL_MSG_CT_GET, unix.NLM_F_DUMP)
	request.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_NETFILTER: {Socket: c.entries}}
	request.AddRawData(header(unix.AF_UNSPEC))
	return request.ExecuteIter(unix.NETLINK_NETFILTER, 0, f)
}

// header is a struct nfgenmsg.
func header(family byte) []byte { return []byte{family, unix.NFNETLINK_V0, 0, 0} }

func (f *flow) delete(conn *netlink.Conn) error {
	attributes := []netlink.Attribute{
		{Type: netlink.Nested | nl.CTA_TUPLE_ORIG, Data: f.tuple},
		{Type: nl.CTA_ID, Data: f.id}, // so that a new connection with the same ports stays
	}
	if f.zone != nil {
		attributes = append(attributes, netlink.Attribute{Type: nl.CTA_ZONE, Data: f.zone})
	}
	data, err := netlink.MarshalAttributes(attributes)
	if err != nil {
		return err
	}
	if err := conn.SetReadDeadline(time.Now().Add(answerLimit)); err != nil {
		return err
	}
	_, err = conn.Execute(netlink.Message{
		Header: netlink.Header{Type: unix.NFNL_SUBSYS_CTNETLINK<<8 | nl.IPCTNL_MSG_CT_DELETE, Flags: netlink.Request | netlink.Acknowledge},
		Data:   append(header(f.family), data...),
	})
	return err
}

// parseFlow reads an entry. The netlink package's ConntrackFlow has no ports of SCTP.
func parseFlow(message []byte) (f flow, ok bool) {
	if len(message) < len(header(0)) {
		return f, false
	}
	f.family = message[0]
	var first, second tuple
	for kind, value := range attributes(message[len(header(0)):]) {
		switch kind {
		case nl.CTA_TUPLE_ORIG:
			f.tuple = value
			first.decode(value)
		case nl.CTA_TUPLE_REPLY:
			second.decode(value)
		case nl.CTA_ID:
			f.id = value
		case nl.CTA_ZONE:
			f.zone = value
		}
	}
	f.Protocol = first.protocol
	f.Source, f.Destination = netip.AddrPortFrom(first.source, first.sourcePort), netip.AddrPortFrom(second.source, second.sourcePort)
	return f, first.source.IsValid() && second.source.IsValid() && f.id != nil
}

// attributes yields the types and values of attributes. It allocates nothing: the netlink package's
// decoder took half of a pass over 100,000 connections.
func attributes(b []byte) iter.Seq2[uint16, []byte] {
	const flags, headerSize = unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER, unix.SizeofNlAttr
	return func(yield func(uint16, []byte) bool) {
		for len(b) >= headerSize {
			size := int(binary.NativeEndian.Uint16(b))
			if size < headerSize || size > len(b) || !yield(binary.NativeEndian.Uint16(b[2:])&^flags, b[headerSize:size]) {
				return
			}
			b = b[min(len(b), (size+unix.NLA_ALIGNTO-1)&^(unix.NLA_ALIGNTO-1)):]
		}
	}
}

// tuple is one direction of an entry.
type tuple struct {
	source     netip.Addr
	sourcePort uint16
	protocol   byte
}

func (t *tuple) decode(b []byte) {
	for kind, nested := range attributes(b) {
		for part, value := range attributes(nested) {
			switch {
			case kind == nl.CTA_TUPLE_IP && (part == nl.CTA_IP_V4_SRC || part == nl.CTA_IP_V6_SRC):
				t.source, _ = netip.AddrFromSlice(value)
			case kind == nl.CTA_TUPLE_PROTO && part == nl.CTA_PROTO_NUM && len(value) > 0:
				t.protocol = value[0]
			case kind == nl.CTA_TUPLE_PROTO && part == nl.CTA_PROTO_SRC_PORT && len(value) > 1:
				t.sourcePort = binary.BigEndian.Uint16(value)
			}
		}
	}
}

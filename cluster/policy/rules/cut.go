package rules

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/mdlayher/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// listLimit is for one answer of the connection tracker.
const listLimit = 30 * time.Second

// flow is an entry of the connection tracker.
type flow struct {
	Connection
	family byte
	tuple  []byte // of the first direction, as the kernel wrote it
	id     []byte
	zone   []byte // nil: the default one
}

// Cut deletes the connection tracker's entries of connections from or to one of the pods that are
// not allowed, except connections with the node itself. It looks in the network namespace of its
// thread. The rules must forbid them already, otherwise the next packet makes the entry again.
//
// The rules alone stop what the first end sends; the entry lets the other end's replies pass.
func (t *Table) Cut(ctx context.Context, pods map[netip.Addr]bool, allowed func(Connection) bool) (cut int, err error) {
	local, err := localAddresses()
	if err != nil {
		return 0, fmt.Errorf("cut connections: %w", err)
	}
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return 0, fmt.Errorf("cut connections: %w", err)
	}
	defer conn.Close()
	messages, err := list(conn)
	if err != nil {
		return 0, fmt.Errorf("cut connections: list the connection tracker's entries: %w", err)
	}
	var failed error
	for _, m := range messages {
		if ctx.Err() != nil {
			return cut, ctx.Err()
		}
		f, ok := parseFlow(m.Data)
		if !ok {
			continue
		}
		source, destination := f.Source.Addr(), f.Destination.Addr()
		if !pods[source] && !pods[destination] || local[source] || local[destination] || allowed(f.Connection) {
			continue
		}
		switch err := f.delete(conn); {
		case errors.Is(err, unix.ENOENT): // it has just ended
		case err != nil:
			failed = fmt.Errorf("cut connection from %s to %s: %w", f.Source, f.Destination, err)
		default:
			cut++
		}
	}
	return cut, failed
}

func localAddresses() (map[netip.Addr]bool, error) {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("list the node's addresses: %w", err)
	}
	local := map[netip.Addr]bool{}
	for _, each := range all {
		if n, ok := each.(*net.IPNet); ok {
			a, _ := netip.AddrFromSlice(n.IP)
			local[a.Unmap()] = true
		}
	}
	return local, nil
}

// request is a message to the connection tracker.
func request(kind int, flags netlink.HeaderFlags, family byte, attributes []byte) netlink.Message {
	return netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(unix.NFNL_SUBSYS_CTNETLINK<<8 | kind), Flags: netlink.Request | flags},
		Data:   append([]byte{family, unix.NFNETLINK_V0, 0, 0}, attributes...), // struct nfgenmsg
	}
}

func list(conn *netlink.Conn) ([]netlink.Message, error) {
	if err := conn.SetReadDeadline(time.Now().Add(listLimit)); err != nil {
		return nil, err
	}
	return conn.Execute(request(nl.IPCTNL_MSG_CT_GET, netlink.Dump, unix.AF_UNSPEC, nil))
}

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
	if err := conn.SetReadDeadline(time.Now().Add(listLimit)); err != nil {
		return err
	}
	_, err = conn.Execute(request(nl.IPCTNL_MSG_CT_DELETE, netlink.Acknowledge, f.family, data))
	return err
}

// parseFlow reads an entry. The netlink package's ConntrackFlow has no ports of SCTP.
func parseFlow(message []byte) (f flow, ok bool) {
	if len(message) < 4 {
		return f, false
	}
	f.family = message[0]
	attributes, err := netlink.NewAttributeDecoder(message[4:])
	if err != nil {
		return f, false
	}
	var first, second tuple
	for attributes.Next() {
		switch attributes.Type() {
		case nl.CTA_TUPLE_ORIG:
			f.tuple = attributes.Bytes()
			attributes.Nested(first.decode)
		case nl.CTA_TUPLE_REPLY:
			attributes.Nested(second.decode)
		case nl.CTA_ID:
			f.id = attributes.Bytes()
		case nl.CTA_ZONE:
			f.zone = attributes.Bytes()
		}
	}
	f.Protocol = first.protocol
	f.Source, f.Destination = netip.AddrPortFrom(first.source, first.sourcePort), netip.AddrPortFrom(second.source, second.sourcePort)
	return f, attributes.Err() == nil && first.source.IsValid() && second.source.IsValid() && f.id != nil
}

// tuple is one direction of an entry.
type tuple struct {
	source     netip.Addr
	sourcePort uint16
	protocol   byte
}

func (t *tuple) decode(attributes *netlink.AttributeDecoder) error {
	attributes.ByteOrder = binary.BigEndian
	for attributes.Next() {
		switch attributes.Type() {
		case nl.CTA_TUPLE_IP:
			attributes.Nested(func(ip *netlink.AttributeDecoder) error {
				for ip.Next() {
					if kind := ip.Type(); kind == nl.CTA_IP_V4_SRC || kind == nl.CTA_IP_V6_SRC {
						t.source, _ = netip.AddrFromSlice(ip.Bytes())
					}
				}
				return ip.Err()
			})
		case nl.CTA_TUPLE_PROTO:
			attributes.Nested(func(protocol *netlink.AttributeDecoder) error {
				protocol.ByteOrder = binary.BigEndian
				for protocol.Next() {
					switch protocol.Type() {
					case nl.CTA_PROTO_NUM:
						t.protocol = protocol.Uint8()
					case nl.CTA_PROTO_SRC_PORT:
						t.sourcePort = protocol.Uint16()
					}
				}
				return protocol.Err()
			})
		}
	}
	return attributes.Err()
}

// Package conntrack lists and deletes entries of the kernel's connection tracker, over netlink
// (linux/netfilter/nfnetlink_conntrack.h). It makes nothing of an entry that is not asked for:
// tables have hundreds of thousands.
package conntrack

import (
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/mdlayher/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// answerLimit is for one answer of the kernel.
const answerLimit = 30 * time.Second

// Bits of an entry's status (linux/netfilter/nf_conntrack_common.h).
const (
	seenReply = 1 << 1 // IPS_SEEN_REPLY
	dstNAT    = 1 << 5 // IPS_DST_NAT
)

// Entry is a connection, or a flow of a protocol without any. It is valid until the next one is
// read.
type Entry struct {
	// Original is as the first packet came, Reply as what answers it sends: its source is where the
	// first packet went in the end.
	Original, Reply Tuple
	// Answered says that there was an answer.
	Answered bool

	translated bool // the destination
	family     byte
	tuple      []byte // of the first direction, as the kernel wrote it
	id         []byte
	zone       []byte // nil: the default one
}

// Tuple is one direction of an entry.
type Tuple struct {
	Protocol            byte
	Source, Destination netip.AddrPort
}

// Tracker is an open connection to the kernel. One goroutine may list while others delete.
type Tracker struct {
	entries   *nl.NetlinkSocket // lists them
	deletions *netlink.Conn
}

// Open opens the connection tracker of the network namespace of its thread.
func Open() (*Tracker, error) {
	t := &Tracker{}
	var err error
	if t.entries, err = nl.GetNetlinkSocketAt(netns.None(), netns.None(), unix.NETLINK_NETFILTER); err == nil {
		err = t.entries.SetReceiveTimeout(&unix.Timeval{Sec: int64(answerLimit / time.Second)})
	}
	if err == nil {
		t.deletions, err = netlink.Dial(unix.NETLINK_NETFILTER, nil)
	}
	if err != nil {
		t.Close()
		return nil, fmt.Errorf("open the connection tracker: %w", err)
	}
	return t, nil
}

// Close ends what waits for the kernel, too.
func (t *Tracker) Close() {
	if t.entries != nil {
		t.entries.Close()
	}
	if t.deletions != nil {
		_ = t.deletions.Close()
	}
}

// List calls f with each entry as it comes, until f returns false.
func (t *Tracker) List(f func(*Entry) bool) error { return t.list(nil, f) }

// ListUnanswered is List of the entries whose destination was translated and that have no answer
// yet. The kernel chooses them, from Linux 5.19 on; older ones list all.
func (t *Tracker) ListUnanswered(f func(*Entry) bool) error {
	filter := []*nl.RtAttr{
		nl.NewRtAttr(nl.CTA_STATUS, binary.BigEndian.AppendUint32(nil, dstNAT)),
		nl.NewRtAttr(statusMask, binary.BigEndian.AppendUint32(nil, dstNAT|seenReply)),
	}
	return t.list(filter, func(e *Entry) bool { return e.Answered || !e.translated || f(e) })
}

// Count is how many entries the network namespace of its thread has.
func Count() (int, error) {
	b, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_count")
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(b)))
}

// muchToList is a number of entries per address. The kernel takes 10 ms for a walk of its table
// (6.18, 262,144 buckets); an entry takes 0.3 us if the kernel leaves it out, 2.4 us if it is read.
const muchToList = 4000

// ListTo is List of the entries whose first packet went to one of the addresses in the end,
// translated or not. Where there are many others, the kernel chooses those of each IPv4 address,
// from Linux 5.8 on; of an IPv6 address it (6.18) chooses all others.
func (t *Tracker) ListTo(addresses []netip.Addr, f func(*Entry) bool) error {
	n, err := Count()
	if err != nil {
		return err
	}
	return t.listTo(addresses, n > muchToList*len(addresses), f)
}

func (t *Tracker) listTo(addresses []netip.Addr, each bool, f func(*Entry) bool) error {
	wanted := map[netip.Addr]struct{}{}
	for _, a := range addresses {
		wanted[a] = struct{}{}
	}
	ended := false
	to := func(e *Entry) bool {
		if _, ok := wanted[e.Reply.Source.Addr()]; ok {
			ended = !f(e)
		}
		return !ended
	}
	if !each {
		return t.list(nil, to)
	}
	six := false
	for _, a := range addresses {
		if six = six || a.Is6(); a.Is6() {
			continue
		}
		if err := t.listOf(unix.AF_INET, filterTo(a), to); err != nil || ended {
			return err
		}
	}
	if !six {
		return nil
	}
	return t.listOf(unix.AF_INET6, nil, to)
}

// filterTo has the kernel choose the entries whose answers come from an IPv4 address.
func filterTo(address netip.Addr) []*nl.RtAttr {
	reply := nl.NewRtAttr(unix.NLA_F_NESTED|nl.CTA_TUPLE_REPLY, nil)
	reply.AddRtAttr(unix.NLA_F_NESTED|nl.CTA_TUPLE_IP, nil).AddRtAttr(nl.CTA_IP_V4_SRC, address.AsSlice())
	by := nl.NewRtAttr(unix.NLA_F_NESTED|ctaFilter, nil)
	by.AddRtAttr(filterOriginal, binary.NativeEndian.AppendUint32(nil, 0))
	by.AddRtAttr(filterReply, binary.NativeEndian.AppendUint32(nil, filterSource))
	return []*nl.RtAttr{reply, by}
}

// Attributes that the netlink package lacks (linux/netfilter/nfnetlink_conntrack.h), and the bit of
// what is compared in a tuple (net/netfilter/nf_internals.h).
const (
	statusMask     = 26 // CTA_STATUS_MASK
	ctaFilter      = 25 // CTA_FILTER
	filterOriginal = 1  // CTA_FILTER_ORIG_FLAGS
	filterReply    = 2  // CTA_FILTER_REPLY_FLAGS
	filterSource   = 1  // CTA_FILTER_F_CTA_IP_SRC
)

func (t *Tracker) list(filter []*nl.RtAttr, f func(*Entry) bool) error {
	return t.listOf(unix.AF_UNSPEC, filter, f)
}

func (t *Tracker) listOf(family int, filter []*nl.RtAttr, f func(*Entry) bool) error {
	request := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_CTNETLINK<<8|nl.IPCTNL_MSG_CT_GET, unix.NLM_F_DUMP)
	request.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_NETFILTER: {Socket: t.entries}}
	request.AddData(header(byte(family)))
	for _, a := range filter {
		request.AddData(a)
	}
	return request.ExecuteIter(unix.NETLINK_NETFILTER, 0, func(message []byte) bool {
		e, ok := parse(message)
		return !ok || f(&e)
	})
}

// Delete deletes an entry, and says whether it did: it may have just ended.
func (t *Tracker) Delete(e *Entry) (deleted bool, err error) {
	attributes := []netlink.Attribute{
		{Type: netlink.Nested | nl.CTA_TUPLE_ORIG, Data: e.tuple},
		{Type: nl.CTA_ID, Data: e.id}, // so that a new connection with the same ports stays
	}
	if e.zone != nil {
		attributes = append(attributes, netlink.Attribute{Type: nl.CTA_ZONE, Data: e.zone})
	}
	data, err := netlink.MarshalAttributes(attributes)
	if err != nil {
		return false, err
	}
	if err := t.deletions.SetReadDeadline(time.Now().Add(answerLimit)); err != nil {
		return false, err
	}
	_, err = t.deletions.Execute(netlink.Message{
		Header: netlink.Header{Type: unix.NFNL_SUBSYS_CTNETLINK<<8 | nl.IPCTNL_MSG_CT_DELETE, Flags: netlink.Request | netlink.Acknowledge},
		Data:   append(header(e.family).Serialize(), data...),
	})
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	return err == nil, err
}

func header(family byte) *nl.Nfgenmsg {
	return &nl.Nfgenmsg{NfgenFamily: family, Version: unix.NFNETLINK_V0}
}

// parse reads an entry. The netlink package's ConntrackFlow has no ports of SCTP.
func parse(message []byte) (e Entry, ok bool) {
	if len(message) < nl.SizeofNfgenmsg {
		return e, false
	}
	e.family = message[0]
	for kind, value := range attributes(message[nl.SizeofNfgenmsg:]) {
		switch kind {
		case nl.CTA_TUPLE_ORIG:
			e.tuple = value
			e.Original.decode(value)
		case nl.CTA_TUPLE_REPLY:
			e.Reply.decode(value)
		case nl.CTA_STATUS:
			if len(value) == 4 {
				status := binary.BigEndian.Uint32(value)
				e.Answered, e.translated = status&seenReply != 0, status&dstNAT != 0
			}
		case nl.CTA_ID:
			e.id = value
		case nl.CTA_ZONE:
			e.zone = value
		}
	}
	return e, e.Original.Source.IsValid() && e.Reply.Source.IsValid() && e.id != nil
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

func (t *Tuple) decode(b []byte) {
	var source, destination netip.Addr
	var sourcePort, destinationPort uint16
	for kind, nested := range attributes(b) {
		for part, value := range attributes(nested) {
			switch {
			case kind == nl.CTA_TUPLE_IP && (part == nl.CTA_IP_V4_SRC || part == nl.CTA_IP_V6_SRC):
				source, _ = netip.AddrFromSlice(value)
			case kind == nl.CTA_TUPLE_IP && (part == nl.CTA_IP_V4_DST || part == nl.CTA_IP_V6_DST):
				destination, _ = netip.AddrFromSlice(value)
			case kind == nl.CTA_TUPLE_PROTO && part == nl.CTA_PROTO_NUM && len(value) > 0:
				t.Protocol = value[0]
			case kind == nl.CTA_TUPLE_PROTO && part == nl.CTA_PROTO_SRC_PORT && len(value) > 1:
				sourcePort = binary.BigEndian.Uint16(value)
			case kind == nl.CTA_TUPLE_PROTO && part == nl.CTA_PROTO_DST_PORT && len(value) > 1:
				destinationPort = binary.BigEndian.Uint16(value)
			}
		}
	}
	t.Source, t.Destination = netip.AddrPortFrom(source, sourcePort), netip.AddrPortFrom(destination, destinationPort)
}

package nftable

import (
	"encoding/binary"
	"maps"
	"slices"

	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Shortened is a Layout with Timeouts.
type Shortened interface {
	// Timeouts are all that rules refer to.
	Timeouts() []Timeouts
}

// Timeouts say how long the kernel keeps a connection of TCP after its last packet (nft: ct
// timeout). Others than these are those of the system when the table is made
// (Documentation/networking/nf_conntrack-sysctl.rst). The kernel never changes an object of this
// kind, so the name must tell what is in it.
type Timeouts struct {
	Name    string
	Seconds map[TCPState]uint32
}

// TCPState is a state of a connection (linux/netfilter/nf_conntrack_tcp.h).
type TCPState uint16

// LastAck is the state when only the last acknowledgement is missing, Closed the one after a reset.
const (
	LastAck TCPState = 6
	Closed  TCPState = 8
)

// SetTimeouts gives them to the packet's connection, if that is new and of TCP.
func SetTimeouts(name string) []expr.Any {
	return []expr.Any{&expr.Objref{Type: unix.NFT_OBJECT_CT_TIMEOUT, Name: name}}
}

// addTimeouts adds what the chains may refer to.
func (k *kernel) addTimeouts(t *transaction, chains []Chain) error {
	layout, ok := k.layout.(Shortened)
	if !ok || len(chains) == 0 {
		return nil
	}
	if err := t.Flush(); err != nil { // what came before
		return err
	}
	for _, o := range layout.Timeouts() {
		t.messages = append(t.messages, o.message(k))
	}
	return nil
}

// message makes the object, unless there is one with the name.
func (o *Timeouts) message(k *kernel) netlink.Message {
	b := []byte{byte(k.table.Family), unix.NFNETLINK_V0, 0, 0} // struct nfgenmsg
	b = appendText(b, unix.NFTA_OBJ_TABLE, k.table.Name)
	b = appendText(b, unix.NFTA_OBJ_NAME, o.Name)
	b = appendNumber(b, unix.NFTA_OBJ_TYPE, unix.NFT_OBJECT_CT_TIMEOUT)
	outer := len(b)
	b = nest(b, unix.NFTA_OBJ_DATA)
	// For both families: the kernel asks for one, and does not look at it.
	b = appendBytes(b, expr.NFTA_CT_TIMEOUT_L3PROTO, binary.BigEndian.AppendUint16(nil, unix.NFPROTO_IPV4))
	b = appendBytes(b, expr.NFTA_CT_TIMEOUT_L4PROTO, []byte{unix.IPPROTO_TCP})
	inner := len(b)
	b = nest(b, expr.NFTA_CT_TIMEOUT_DATA)
	for _, state := range slices.Sorted(maps.Keys(o.Seconds)) {
		b = appendNumber(b, uint16(state), o.Seconds[state])
	}
	return netlink.Message{
		Header: netlink.Header{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_NEWOBJ, Flags: netlink.Request | netlink.Create},
		Data:   closed(closed(b, inner), outer),
	}
}

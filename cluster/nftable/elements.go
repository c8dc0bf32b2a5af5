package nftable

import (
	"encoding/binary"
	"maps"
	"slices"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// elements makes messages that add elements to sets, or remove them. It does what the nftables
// package does in a fifth of the time, which counts for all endpoints of a cluster.
type elements struct {
	sets  []*nftables.Set
	lists map[int]*elementList // by set
}

// elementList has the elements of one set.
type elementList struct {
	full  [][]byte // messages
	open  []byte   // a message that is not full
	at    int      // where the list starts in it
	count int
}

// listLimit is a little less than an attribute can hold.
const listLimit = 60 << 10

func (k *kernel) elements() *elements {
	return &elements{sets: k.sets, lists: map[int]*elementList{}}
}

func (l *elements) none() bool { return len(l.lists) == 0 }

// add adds an element. One that is to be removed has no value.
func (l *elements) add(e Element) {
	set, list := l.sets[e.Set], l.lists[e.Set]
	if list == nil {
		list = &elementList{}
		l.lists[e.Set] = list
	}
	if list.open == nil {
		list.begin(set)
	}
	b, at := list.open, len(list.open)
	b = nest(b, unix.NFTA_LIST_ELEM)
	b = appendValue(b, unix.NFTA_SET_ELEM_KEY, e.Key)
	if e.End != "" {
		b = appendValue(b, nftables.NFTA_SET_ELEM_KEY_END, e.End)
	}
	switch {
	case e.Value == "":
	case isVerdicts(set):
		b = appendGoto(b, e.Value)
	default:
		b = appendValue(b, unix.NFTA_SET_ELEM_DATA, e.Value)
	}
	list.open = closed(b, at)
	list.count++
	if len(list.open)-list.at >= listLimit {
		list.end()
	}
}

// forget forgets the elements of a set.
func (l *elements) forget(set int) { delete(l.lists, set) }

func (l *elementList) begin(s *nftables.Set) {
	var b []byte
	if len(l.full) > 0 { // it will be as long
		b = make([]byte, 0, cap(l.full[0]))
	}
	b = append(b, byte(s.Table.Family), unix.NFNETLINK_V0, 0, 0) // struct nfgenmsg
	b = appendText(b, unix.NFTA_SET_ELEM_LIST_TABLE, s.Table.Name)
	b = appendText(b, unix.NFTA_SET_ELEM_LIST_SET, s.Name)
	l.at = len(b)
	l.open = nest(b, unix.NFTA_SET_ELEM_LIST_ELEMENTS)
}

func (l *elementList) end() {
	l.full = append(l.full, closed(l.open, l.at))
	l.open = nil
}

// messages are NFT_MSG_NEWSETELEM or NFT_MSG_DELSETELEM, in the order of the sets.
func (l *elements) messages(kind netlink.HeaderType, flags netlink.HeaderFlags) []netlink.Message {
	var all []netlink.Message
	for _, set := range slices.Sorted(maps.Keys(l.lists)) {
		list := l.lists[set]
		if list.open != nil {
			list.end()
		}
		for _, data := range list.full {
			header := netlink.Header{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | kind, Flags: netlink.Request | flags}
			all = append(all, netlink.Message{Header: header, Data: data})
		}
	}
	return all
}

func isVerdicts(s *nftables.Set) bool { return s.DataType.Name == nftables.TypeVerdict.Name }

// nest starts an attribute, which closed ends. Attributes are in the byte order of the machine.
func nest(b []byte, kind uint16) []byte {
	return binary.NativeEndian.AppendUint16(append(b, 0, 0), kind|unix.NLA_F_NESTED)
}

func closed(b []byte, at int) []byte {
	binary.NativeEndian.PutUint16(b[at:], uint16(len(b)-at))
	return b
}

// appendValue adds data of a key or a map.
func appendValue(b []byte, kind uint16, data string) []byte {
	at := len(b)
	b = nest(b, kind)
	b = binary.NativeEndian.AppendUint16(b, uint16(unix.NLA_HDRLEN+len(data)))
	b = binary.NativeEndian.AppendUint16(b, unix.NFTA_DATA_VALUE)
	b = append(b, data...)
	return closed(append(b, make([]byte, -len(data)&(unix.NLA_ALIGNTO-1))...), at)
}

// appendGoto adds the data of a map of verdicts that goes to a chain.
func appendGoto(b []byte, chain string) []byte {
	outer := len(b)
	b = nest(b, unix.NFTA_SET_ELEM_DATA)
	inner := len(b)
	b = nest(b, unix.NFTA_DATA_VERDICT)
	b = binary.NativeEndian.AppendUint16(b, unix.NLA_HDRLEN+4)
	b = binary.NativeEndian.AppendUint16(b, unix.NFTA_VERDICT_CODE)
	verdict := int32(unix.NFT_GOTO)
	b = binary.BigEndian.AppendUint32(b, uint32(verdict))
	b = appendText(b, unix.NFTA_VERDICT_CHAIN, chain)
	return closed(closed(b, inner), outer)
}

func appendText(b []byte, kind uint16, text string) []byte {
	b = binary.NativeEndian.AppendUint16(b, uint16(unix.NLA_HDRLEN+len(text)+1))
	b = append(binary.NativeEndian.AppendUint16(b, kind), text...)
	return append(b, make([]byte, 4-len(text)%4)...) // at least one zero, which ends the text
}

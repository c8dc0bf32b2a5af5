package nftable

import (
	"encoding/binary"
	"fmt"
	"iter"
	"maps"
	"slices"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Ahead reports whether the kernel has what Replace has made and SendAhead has sent, and nothing
// else. It ends with the first Apply, and when someone else changes the table. As long as it is
// true, the layout leaves out what was sent.
func (t *Table) Ahead() bool { return t.found != nil && t.found.made }

// SendAhead adds elements to maps ahead of the first Apply, in a transaction of its own. After an
// error Ahead is false.
func (t *Table) SendAhead(elements iter.Seq[Element]) error {
	lists := elementLists{sets: t.kernel.sets}
	for e := range elements {
		lists.add(e)
	}
	messages := lists.messages()
	if len(messages) == 0 {
		return nil
	}
	if err := t.unwatched(func() error { return t.kernel.exchange(messages) }); err != nil {
		t.Reread()
		return fmt.Errorf("nftables table %s: %w", t.name, err)
	}
	return nil
}

// Reread has the next Apply read what the kernel has: Ahead is false then.
func (t *Table) Reread() { t.found = nil }

// made is the table after Replace.
func (k *kernel) made() *Found {
	f := &Found{Layout: true, made: true, Elements: map[Place]string{}}
	for _, c := range k.layout.Chains() {
		f.chains = append(f.chains, c.Name)
	}
	for e := range k.layout.Elements() {
		f.Elements[Place{e.Set, e.Key, e.End}] = e.Value
	}
	return f
}

// elementLists makes messages that add elements to maps. It does what the nftables package does in
// a fifth of the time, which counts for all endpoints of a cluster.
type elementLists struct {
	sets []*nftables.Set
	open map[int][]byte // the elements of a message, by set
	done []netlink.Message
}

// listLimit is a little less than an attribute can hold.
const listLimit = 60 << 10

func (l *elementLists) add(e Element) {
	if l.open == nil {
		l.open = map[int][]byte{}
	}
	list := l.open[e.Set]
	if list == nil {
		list = make([]byte, 0, listLimit+1<<10)
	}
	at := len(list)
	list = nest(list, unix.NFTA_LIST_ELEM)
	list = appendValue(list, unix.NFTA_SET_ELEM_KEY, e.Key)
	list = appendValue(list, unix.NFTA_SET_ELEM_DATA, e.Value)
	l.open[e.Set] = closed(list, at)
	if len(list) >= listLimit {
		l.flush(e.Set)
	}
}

func (l *elementLists) flush(set int) {
	s, list := l.sets[set], l.open[set]
	delete(l.open, set)
	data := []byte{byte(s.Table.Family), unix.NFNETLINK_V0, 0, 0} // struct nfgenmsg
	data = appendText(data, unix.NFTA_SET_ELEM_LIST_TABLE, s.Table.Name)
	data = appendText(data, unix.NFTA_SET_ELEM_LIST_SET, s.Name)
	at := len(data)
	data = closed(append(nest(data, unix.NFTA_SET_ELEM_LIST_ELEMENTS), list...), at)
	l.done = append(l.done, netlink.Message{
		Header: netlink.Header{
			Type:  unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_NEWSETELEM,
			Flags: netlink.Request | netlink.Acknowledge | netlink.Create,
		},
		Data: data,
	})
}

func (l *elementLists) messages() []netlink.Message {
	for _, set := range slices.Sorted(maps.Keys(l.open)) {
		l.flush(set)
	}
	return l.done
}

// nest begins an attribute, which closed ends. Attributes are in the byte order of the machine.
func nest(b []byte, kind uint16) []byte {
	return binary.NativeEndian.AppendUint16(append(b, 0, 0), kind|unix.NLA_F_NESTED)
}

func closed(b []byte, at int) []byte {
	binary.NativeEndian.PutUint16(b[at:], uint16(len(b)-at))
	return b
}

// appendValue adds data, whose length is a multiple of four.
func appendValue(b []byte, kind uint16, data string) []byte {
	at := len(b)
	b = nest(b, kind)
	b = binary.NativeEndian.AppendUint16(b, uint16(4+len(data)))
	b = binary.NativeEndian.AppendUint16(b, unix.NFTA_DATA_VALUE)
	return closed(append(b, data...), at)
}

func appendText(b []byte, kind uint16, text string) []byte {
	b = binary.NativeEndian.AppendUint16(b, uint16(4+len(text)+1))
	b = append(binary.NativeEndian.AppendUint16(b, kind), text...)
	return append(b, make([]byte, 4-len(text)%4)...) // at least one zero, which ends the text
}

// exchange sends messages as one transaction of its own.
func (k *kernel) exchange(messages []netlink.Message) error {
	ends := func(kind netlink.HeaderType) netlink.Message {
		return netlink.Message{
			Header: netlink.Header{Type: kind, Flags: netlink.Request},
			Data:   []byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, unix.NFNL_SUBSYS_NFTABLES},
		}
	}
	all := append([]netlink.Message{ends(unix.NFNL_MSG_BATCH_BEGIN)}, messages...)
	all = append(all, ends(unix.NFNL_MSG_BATCH_END))
	err := k.limited(func() error {
		if _, err := k.socket.SendMessages(all); err != nil {
			return err
		}
		for answers := 0; answers < len(messages); {
			got, err := k.socket.Receive()
			if err != nil {
				return err
			}
			answers += len(got)
		}
		return nil
	})
	if err != nil {
		return k.again(err)
	}
	return nil
}

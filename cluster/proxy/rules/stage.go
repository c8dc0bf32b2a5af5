package rules

import (
	"encoding/binary"
	"fmt"
	"maps"
	"slices"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Stage sends the endpoints of ports ahead of the first Apply, which must have the same ports: no
// rule looks at them before. So the kernel can work while the caller still finds out about other
// ports. It does nothing once the table has been compared with what is wanted, or if the kernel has
// a table of an earlier process.
func (t *Table) Stage(ports map[Key]*Port) error {
	if t.started || t.found == nil || !t.found.refuses {
		return nil
	}
	b, lists := &batch{}, elementLists{sets: t.sets()}
	for k, want := range ports {
		if want == nil || t.ports[k] != nil {
			continue
		}
		t.update(b, k, want)
		t.staged[k] = want
		p := t.ports[k]
		for _, g := range p.backends {
			for e := range p.endpoints(g) {
				lists.add(e)
			}
		}
	}
	if err := t.unwatched(func() error { return t.kernel.exchange(lists.messages()) }); err != nil {
		t.unstage()
		return fmt.Errorf("nftables table %s: %w", t.Name, err)
	}
	return nil
}

// unstage forgets what Stage has sent: it may not be in the kernel any more, or not be wanted.
func (t *Table) unstage() {
	if len(t.staged) > 0 {
		t.staged, t.found = map[Key]*Port{}, nil
	}
}

// refusing is the table after Refuse.
func (t *Table) refusing() *found {
	f := &found{layout: true, refuses: true, elements: map[place]element{}}
	for _, c := range t.chains() {
		f.chains = append(f.chains, c.name)
	}
	for _, fam := range families {
		for _, e := range t.kinds.elements(fam) {
			f.elements[place{e.set, e.key, e.end}] = e
		}
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

func (l *elementLists) add(e element) {
	if l.open == nil {
		l.open = map[int][]byte{}
	}
	list := l.open[e.set]
	if list == nil {
		list = make([]byte, 0, listLimit+1<<10)
	}
	at := len(list)
	list = nest(list, unix.NFTA_LIST_ELEM)
	list = appendValue(list, unix.NFTA_SET_ELEM_KEY, e.key)
	list = appendValue(list, unix.NFTA_SET_ELEM_DATA, e.value)
	l.open[e.set] = closed(list, at)
	if len(list) >= listLimit {
		l.flush(e.set)
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
	if len(messages) == 0 {
		return nil
	}
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

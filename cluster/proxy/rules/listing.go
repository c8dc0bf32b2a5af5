package rules

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// found is what the kernel has of the table.
type found struct {
	layout   bool // it has the maps and sets that are wanted, and no others
	refuses  bool // Refuse has just made it
	chains   []string
	elements map[place]element
}

// list reads the table. A table that has other maps and sets than are wanted is as good as none.
func (k *kernel) list(sets []*nftables.Set) (*found, error) {
	f := &found{elements: map[place]nftable.Element{}}
	if _, err := k.conn.ListTableOfFamily(k.table.Name, nftables.TableFamilyINet); errors.Is(err, unix.ENOENT) {
		return f, nil
	} else if err != nil {
		return nil, k.again(err)
	}
	exist, err := k.conn.GetSets(k.table)
	if err != nil {
		return nil, k.again(err)
	}
	exist = slices.DeleteFunc(exist, func(s *nftables.Set) bool { return s.Anonymous })
	for _, s := range sets {
		if !slices.ContainsFunc(exist, func(e *nftables.Set) bool { return sameSet(e, s) }) {
			return f, nil
		}
	}
	if len(exist) != len(sets) {
		return f, nil
	}
	chains, err := k.conn.ListChainsOfTableFamily(nftables.TableFamilyINet)
	if err != nil {
		return nil, k.again(err)
	}
	for _, c := range chains {
		if c.Table.Name == k.table.Name {
			f.chains = append(f.chains, c.Name)
		}
	}
	for i, s := range sets {
		if s.Dynamic {
			continue
		}
		elements, err := k.conn.GetSetElements(s)
		if err != nil {
			return nil, k.again(fmt.Errorf("set %s: %w", s.Name, err))
		}
		for _, e := range elements {
			got := nftable.Element{Set: i, Key: string(e.Key), End: string(e.KeyEnd), Value: string(e.Val)}
			if s.DataType.Name == nftables.TypeVerdict.Name {
				got.value, got.chain = "", verdictChain(e.Val)
			}
			f.elements[place{i, got.key, got.end}] = got
		}
	}
	f.layout = true
	return f, nil
}

// sameSet compares a set of the kernel with one that is wanted. The nftables package (0.3.0) does not tell the
// type of the key of a map of verdicts.
func sameSet(is, want *nftables.Set) bool {
	return is.Name == want.Name && is.IsMap == want.IsMap && is.Interval == want.Interval && is.HasTimeout == want.HasTimeout &&
		is.Dynamic == want.Dynamic &&
		(want.DataType.Name == nftables.TypeVerdict.Name || is.KeyType.Bytes == want.KeyType.Bytes && is.DataType.Bytes == want.DataType.Bytes)
}

// verdictChain is the chain of a verdict's attributes.
func verdictChain(data []byte) string {
	attributes, err := netlink.NewAttributeDecoder(data)
	if err != nil {
		return ""
	}
	for attributes.Next() {
		if attributes.Type() == unix.NFTA_VERDICT_CHAIN {
			return attributes.String()
		}
	}
	return ""
}

// adopted is what the first Apply takes from the kernel's table, so that it changes little and clients keep
// their endpoints: the numbers of backends, by their frontends, and the slots of endpoints.
type adopted struct {
	everyone, inside map[address]uint32
	slots            [2]map[uint32]map[uint32]netip.AddrPort // by family, number and slot
	ids              [2]map[uint32]map[uint32]uint32
}

func (t *Table) adopt(f *found) {
	t.adopted = adopted{everyone: map[address]uint32{}, inside: map[address]uint32{}}
	a := &t.adopted
	for i := range families {
		a.slots[i], a.ids[i] = map[uint32]map[uint32]netip.AddrPort{}, map[uint32]map[uint32]uint32{}
	}
	for _, e := range f.elements {
		fam, kind := families[e.set/setsOfFamily], e.set%setsOfFamily
		switch kind {
		case setSvc, setNodePort:
			a.everyone[fam.fromKey(e.key)] = nftable.FromNative(e.value) >> 12
		case setInside, setNodeIn:
			a.inside[fam.fromKey(e.key)] = nftable.FromNative(e.value) >> 12
		case setEp:
			put(a.slots[fam.Index], e.key, fromDestination(e.value))
		case setEpid:
			put(a.ids[fam.Index], e.key, nftable.FromNative(e.value))
		case setKinds:
			if kind := nftable.FromNative(e.key); kind&^markKind == 0 {
				t.kinds.adoptChain(fam, kind, e.chain)
			}
		}
	}
}

// put files a value under the number and slot of a key.
func put[V any](m map[uint32]map[uint32]V, key string, v V) {
	number, slot := nftable.FromNative(key[:4])>>12, nftable.FromNative(key[4:])
	if m[number] == nil {
		m[number] = map[uint32]V{}
	}
	m[number][slot] = v
}

func (f *family) fromKey(key string) address {
	a := address{ipv6: f.Index == 1}
	if len(key) > 8 {
		a.addr, _ = netip.AddrFromSlice([]byte(key[:f.Size]))
		key = key[f.Size:]
	}
	a.protocol, a.port = key[0], binary.BigEndian.Uint16([]byte(key[4:]))
	return a
}

// adoptChain notes that there is a chain for a kind, if its name says that it is for that.
func (k *kinds) adoptChain(f *family, kind uint32, chain string) {
	if kind&markSticky == 0 {
		if count := int(kind); count > 0 && count <= MaxEndpoints && chain == pickName(f, count) {
			k.adopt(f, kind, sticky{count: count})
		}
		return
	}
	var count, seconds int
	if _, err := fmt.Sscanf(chain, "stick"+f.Name+"_%d_%d", &count, &seconds); err != nil || count < 1 || count > MaxEndpoints || seconds < 1 {
		return
	}
	k.adopt(f, kind, sticky{count, time.Duration(seconds) * time.Second})
}

// number returns the number that a port's backend had, or 0.
func (a *adopted) number(p *port, backend int) uint32 {
	for _, f := range p.Frontends {
		if n := a.everyone[p.address(f)]; f.Backend == backend && n != 0 {
			return n
		}
		if n := a.inside[p.address(f)]; f.Inside == backend && f.Inside != f.Backend && n != 0 {
			return n
		}
	}
	return 0
}

// endpoints returns the endpoints that a backend had, and their ids if it had affinity.
func (a *adopted) endpoints(f *family, number uint32) (slots []netip.AddrPort, ids []uint32) {
	for slot := range uint32(len(a.slots[f.Index][number])) {
		e, exists := a.slots[f.Index][number][slot]
		if !exists {
			break
		}
		slots = append(slots, e)
		if id := a.ids[f.Index][number][slot]; id>>12 == number && id&markEndpoint != 0 {
			ids = append(ids, id&markEndpoint)
		}
	}
	if len(ids) != len(slots) {
		ids = nil
	}
	return slots, ids
}

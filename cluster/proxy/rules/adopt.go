package rules

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"time"

	"github.com/coracle-project/coracle/cluster/nftable"
)

// adopted is what the first Apply takes from the kernel's table, so that it changes little and
// clients keep their endpoints: the numbers of backends, by their frontends, and the slots of
// endpoints.
type adopted struct {
	everyone, inside map[address]uint32
	slots            [2]map[uint32]map[uint32]netip.AddrPort // by family, number and slot
	ids              [2]map[uint32]map[uint32]uint32
}

func (t *Table) adopt(f *nftable.Found) {
	t.adopted = adopted{everyone: map[address]uint32{}, inside: map[address]uint32{}}
	a := &t.adopted
	for i := range families {
		a.slots[i], a.ids[i] = map[uint32]map[uint32]netip.AddrPort{}, map[uint32]map[uint32]uint32{}
	}
	for e, value := range f.Elements {
		fam, kind := families[e.Set/setsOfFamily], e.Set%setsOfFamily
		switch kind {
		case setSvc, setNodePort:
			a.everyone[fam.fromKey(e.Key)] = nftable.FromNative(value) >> 12
		case setInside, setNodeIn:
			a.inside[fam.fromKey(e.Key)] = nftable.FromNative(value) >> 12
		case setEp:
			put(a.slots[fam.Index], e.Key, fromDestination(value))
		case setEpid:
			put(a.ids[fam.Index], e.Key, nftable.FromNative(value))
		case setKinds:
			if kind := nftable.FromNative(e.Key); kind&^markKind == 0 {
				t.kinds.adoptChain(fam, kind, value)
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

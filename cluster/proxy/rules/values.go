package rules

import (
	"encoding/binary"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/coracle-project/coracle/cluster/nftable"
)

// A packet to a Service carries a mark from the lookup of its destination to the end of postrouting:
//
//	bit 31      set: the mark is ours
//	bits 12-30  the number of the backend
//	bit 11      masquerade
//	bits 0-10   the kind: a number of endpoints, 0 to reject, 1023 to drop; with bit 10 set the index of
//	            a number of endpoints and a timeout of affinity
const (
	markOurs       = 1 << 31
	markNumber     = 0xfffff000 // with markOurs
	markMasquerade = 1 << 11
	markSticky     = 1 << 10
	markKind       = 0xfff
	kindDrop       = MaxEndpoints + 1
	maxNumber      = 1<<19 - 1
	maxSticky      = 1 << 10
)

func destination(a netip.AddrPort) string { return nftable.Field(a.Addr()) + nftable.Field16(a.Port()) }

func fromDestination(s string) netip.AddrPort {
	n := len(s) - 4
	a, _ := netip.AddrFromSlice([]byte(s[:n]))
	return netip.AddrPortFrom(a, binary.BigEndian.Uint16([]byte(s[n:])))
}

// address is a frontend's place, which one Port at a time can have.
type address struct {
	ipv6     bool
	addr     netip.Addr // the zero Addr: a port of the node
	protocol byte
	port     uint16
}

// key is the address in the maps.
func (a address) key() string {
	k := nftable.Field8(a.protocol) + nftable.Field16(a.port)
	if a.addr.IsValid() {
		k = nftable.Field(a.addr) + k
	}
	return k
}

// numbers hands out the numbers of backends. A number is not used again soon: a packet may have it still.
type numbers struct {
	used map[uint32]bool
	next uint32
}

func newNumbers() numbers { return numbers{used: map[uint32]bool{}, next: 1} }

// take returns a free number, or 0 if there is none.
func (n *numbers) take() uint32 {
	for range maxNumber {
		v := n.next
		if n.next++; n.next > maxNumber {
			n.next = 1
		}
		if !n.used[v] {
			n.used[v] = true
			return v
		}
	}
	return 0
}

// claim takes a number that the kernel knows already.
func (n *numbers) claim(v uint32) bool {
	if v == 0 || v > maxNumber || n.used[v] {
		return false
	}
	n.used[v] = true
	return true
}

func (n *numbers) release(v uint32) { delete(n.used, v) }

// sticky is what a chain for affinity is made for.
type sticky struct {
	count   int
	timeout time.Duration
}

// kinds are those that packets' marks can have, by family: there is a chain for each.
type kinds struct {
	plain  [2]map[int]bool // numbers of endpoints
	sticky [2][]sticky     // at its index
}

func newKinds() kinds {
	return kinds{plain: [2]map[int]bool{{}, {}}}
}

// of returns the kind for a backend, and whether it is a new one.
func (k *kinds) of(f *family, count int, timeout time.Duration, drop bool) (kind uint32, created bool) {
	switch {
	case count == 0 && drop:
		return kindDrop, false
	case count == 0:
		return 0, false
	}
	if timeout > 0 {
		want := sticky{count, timeout}
		if i := slices.Index(k.sticky[f.Index], want); i >= 0 {
			return markSticky | uint32(i), false
		}
		// An index that an adopted table had no chain for is free.
		i := slices.Index(k.sticky[f.Index], sticky{})
		if i < 0 && len(k.sticky[f.Index]) < maxSticky {
			i = len(k.sticky[f.Index])
			k.sticky[f.Index] = append(k.sticky[f.Index], sticky{})
		}
		if i >= 0 {
			k.sticky[f.Index][i] = want
			return markSticky | uint32(i), true
		}
		// More combinations than fit: without affinity.
	}
	created = !k.plain[f.Index][count]
	k.plain[f.Index][count] = true
	return uint32(count), created
}

// chain returns the chain for a kind and the elements that lead to it.
func (k *kinds) chain(f *family, kind uint32) (nftable.Chain, []nftable.Element) {
	var c nftable.Chain
	if kind&markSticky != 0 {
		c = f.stick(k.sticky[f.Index][kind&^markSticky])
	} else {
		c = f.pick(int(kind))
	}
	return c, f.leads(kind, c.Name)
}

// leads are the elements that lead packets of a kind to a chain.
func (f *family) leads(kind uint32, chain string) []nftable.Element {
	return []nftable.Element{
		{Set: f.setID(setKinds), Key: nftable.Native(kind), Value: chain},
		{Set: f.setID(setKinds), Key: nftable.Native(kind | markMasquerade), Value: chain},
	}
}

// elements are those of a family's map of kinds.
func (k *kinds) elements(f *family) []nftable.Element {
	all := append(f.leads(0, "no_endpoints"), f.leads(kindDrop, "no_local")...)
	for _, count := range slices.Sorted(maps.Keys(k.plain[f.Index])) {
		all = append(all, f.leads(uint32(count), pickName(f, count))...)
	}
	for i, s := range k.sticky[f.Index] {
		if s.count > 0 {
			all = append(all, f.leads(markSticky|uint32(i), stickName(f, s))...)
		}
	}
	return all
}

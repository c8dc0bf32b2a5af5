package rules

import (
	"slices"
	"time"

	"github.com/coracle-project/coracle/cluster/nftable"
)

// sticky is what a chain for affinity is made for.
type sticky struct {
	count   int
	timeout time.Duration
}

// kinds are those that backends have, by family: there is a chain for each. Those of up to
// commonCount endpoints without affinity are always there, and some that no backend has any more
// stay, as the next change often wants them again: the kernel (6.18) passes by all endpoints of all
// Services when a chain that looks for them is new.
type kinds [2]struct {
	plain  map[int]bool   // numbers of endpoints
	sticky map[int]sticky // by index
	index  map[sticky]int
	users  map[uint32]int  // how many backends have a kind; no zeros
	left   map[uint32]bool // kinds whose last backend gives them up in this transaction
}

// commonCount is how many endpoints most Services have at most.
const commonCount = 16

// spareKinds is how many kinds of a family may be unused.
const spareKinds = 16

func newKinds() *kinds {
	k := &kinds{}
	for i := range k {
		k[i].plain, k[i].sticky, k[i].index = map[int]bool{}, map[int]sticky{}, map[sticky]int{}
		k[i].users, k[i].left = map[uint32]int{}, map[uint32]bool{}
		for count := range commonCount {
			k[i].plain[count+1] = true
		}
	}
	return k
}

// take returns the kind for a backend, and whether it is a new one. The backend gives it back by
// release.
func (k *kinds) take(f *family, count int, timeout time.Duration, drop bool) (kind uint32, created bool) {
	switch {
	case count == 0 && drop:
		return kindDrop, false
	case count == 0:
		return 0, false
	}
	here, fits := &k[f.Index], false
	if timeout > 0 {
		kind, created, fits = k.affine(f, sticky{count, timeout})
	}
	if !fits { // without affinity, or there are more combinations than fit
		kind, created = uint32(count), !here.plain[count]
		here.plain[count] = true
	}
	here.users[kind]++
	return kind, created
}

// affine returns the kind for affinity.
func (k *kinds) affine(f *family, want sticky) (kind uint32, created, fits bool) {
	here := &k[f.Index]
	if i, exists := here.index[want]; exists {
		return markSticky | uint32(i), false, true
	}
	for i := range maxSticky {
		if _, used := here.sticky[i]; !used {
			here.sticky[i], here.index[want] = want, i
			return markSticky | uint32(i), true, true
		}
	}
	return 0, false, false
}

func (k *kinds) release(f *family, kind uint32) {
	if kind == 0 || kind == kindDrop {
		return
	}
	here := &k[f.Index]
	if here.users[kind]--; here.users[kind] == 0 {
		delete(here.users, kind)
		here.left[kind] = true
	}
}

// adopt notes that the kernel has a kind.
func (k *kinds) adopt(f *family, kind uint32, s sticky) {
	here := &k[f.Index]
	if kind&markSticky == 0 {
		here.plain[s.count] = true
	} else if _, exists := here.index[s]; !exists {
		i := int(kind &^ markSticky)
		here.sticky[i], here.index[s] = s, i
	}
}

// all are the kinds of a family, in order.
func (k *kinds) all(f *family) []uint32 {
	var all []uint32
	for count := range k[f.Index].plain {
		all = append(all, uint32(count))
	}
	for i := range k[f.Index].sticky {
		all = append(all, markSticky|uint32(i))
	}
	slices.Sort(all)
	return all
}

// name is that of the chain for a kind.
func (k *kinds) name(f *family, kind uint32) string {
	if kind&markSticky != 0 {
		return stickName(f, k[f.Index].sticky[int(kind&^markSticky)])
	}
	return pickName(f, int(kind))
}

// chain is that for a kind.
func (k *kinds) chain(f *family, kind uint32) nftable.Chain {
	if kind&markSticky != 0 {
		return f.stick(k[f.Index].sticky[int(kind&^markSticky)])
	}
	return f.pick(int(kind))
}

// free takes away the kinds that no backend has, if there are more than some, and returns the
// elements that lead to their chains. It is called once for each transaction. Those that it gives
// up stay until the next: a packet may be on its way there.
func (k *kinds) free(spare int) (gone []nftable.Element) {
	for _, f := range families {
		here := &k[f.Index]
		left := here.left
		here.left = map[uint32]bool{}
		unused := slices.DeleteFunc(k.all(f), func(kind uint32) bool { return kind <= commonCount || here.users[kind] > 0 })
		if len(unused) <= spare {
			continue
		}
		for _, kind := range unused {
			if left[kind] {
				continue
			}
			gone = append(gone, f.leads(kind, k.name(f, kind)))
			if kind&markSticky == 0 {
				delete(here.plain, int(kind))
				continue
			}
			i := int(kind &^ markSticky)
			delete(here.index, here.sticky[i])
			delete(here.sticky, i)
		}
	}
	return gone
}

// freeKinds removes the chains that free gives up. What an earlier process has left goes at once.
func (t *Table) freeKinds(b *batch) {
	spare := spareKinds
	if b.Whole() {
		spare = 0
	}
	for _, e := range t.kinds.free(spare) {
		b.Remove(e)
		b.RemoveChain(e.Value)
	}
}

// leads is the element that leads to the chain for a kind.
func (f *family) leads(kind uint32, chain string) nftable.Element {
	return nftable.Element{Set: f.setID(setKinds), Key: nftable.Native(kind), Value: chain}
}

// elements are those of a family's map of kinds.
func (k *kinds) elements(f *family) []nftable.Element {
	all := []nftable.Element{f.leads(0, "no_endpoints"), f.leads(kindDrop, "no_local")}
	for _, kind := range k.all(f) {
		all = append(all, f.leads(kind, k.name(f, kind)))
	}
	return all
}

package rules

import (
	"iter"
	"math"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/cluster/nftable"
)

// A packet carries this while it is decided, in its priority: the class in the upper 12 bits, and
// the peer's ident in the lower 20.
const (
	classShift = 20
	classMask  = MaxClass << classShift
	identMask  = MaxIdent
	// unknown is, in place of a class, what an address has that no map has. No class is that high.
	unknown = 1<<32 - 1
)

func linkElement(group uint32) nftable.Element {
	return nftable.Element{Set: setLinks, Key: nftable.Native(group)}
}

func identElement(a netip.Addr, ident uint32) nftable.Element {
	return nftable.Element{Set: familyOf(a).setID(setIdent), Key: nftable.Field(a), Value: nftable.Native(ident)}
}

func podElements(a netip.Addr, p Pod) []nftable.Element {
	f, key := familyOf(a), nftable.Field(a)
	elements := []nftable.Element{
		{Set: f.setID(setPods + int(Ingress)), Key: key, Value: nftable.Native(p.Ingress)},
		{Set: f.setID(setPods + int(Egress)), Key: key, Value: nftable.Native(p.Egress)},
		{Set: f.setID(setSelf), Key: key + key},
	}
	if p.Ingress != 0 || p.Egress != 0 {
		elements = append(elements, nftable.Element{Set: f.setID(setIsolated), Key: key})
	}
	return elements
}

// elements yields those of a class.
func (c *class) elements(d Direction, number uint32) iter.Seq[nftable.Element] {
	return func(yield func(nftable.Element) bool) {
		if !yield(nftable.Element{Set: d.setID(setClasses), Key: nftable.Native(number), Value: c.chain(d, number)}) {
			return
		}
		for ident := range c.decided {
			if !yield(nftable.Element{Set: d.setID(setDecided), Key: nftable.Native(number<<classShift | ident)}) {
				return
			}
		}
		for ident, a := range c.idents {
			if !a.elements(d, nftable.Native(number<<classShift|ident), yield) {
				return
			}
		}
		for i, byProtocol := range c.blocks {
			for protocol, intervals := range byProtocol {
				for _, each := range intervals {
					if !each.elements(d, families[i], nftable.Native(number<<classShift), protocol, yield) {
						return
					}
				}
			}
		}
	}
}

func (a *allowance) elements(d Direction, key string, yield func(nftable.Element) bool) bool {
	if a.all {
		return yield(nftable.Element{Set: d.setID(setAny), Key: key})
	}
	for protocol, ports := range a.ports {
		for _, s := range ports {
			if s.first == s.last {
				if !yield(nftable.Element{Set: d.setID(setAllow), Key: key + s.field(protocol, s.first)}) {
					return false
				}
				continue
			}
			for _, p := range protocolRanges(protocol) {
				e := nftable.Element{Set: d.setID(setRange), Key: key + s.field(p[0], s.first), End: key + s.field(p[1], s.last)}
				if !yield(e) {
					return false
				}
			}
		}
	}
	return true
}

func (i *interval) elements(d Direction, f *family, key string, protocol byte, yield func(nftable.Element) bool) bool {
	first, last := key+nftable.Field(i.first), key+nftable.Field(i.last)
	if protocol == 0 {
		return yield(nftable.Element{Set: f.setID(setNets + int(d)), Key: first, End: last})
	}
	for _, s := range i.ports {
		for _, p := range protocolRanges(protocol) {
			e := nftable.Element{Set: f.setID(setBlocks + int(d)), Key: first + s.field(p[0], s.first), End: last + s.field(p[1], s.last)}
			if !yield(e) {
				return false
			}
		}
	}
	return true
}

// OtherRanges is how many ranges of protocols Others are.
const OtherRanges = 4

// protocolRanges are the ranges of protocols, inclusive, that protocol means: itself, or, for
// Others, all without ports. Their packets have any number where others have a port.
func protocolRanges(protocol byte) [][2]byte {
	if protocol != Others {
		return [][2]byte{{protocol, protocol}}
	}
	all := make([][2]byte, 0, OtherRanges)
	first := byte(0)
	for _, p := range []byte{unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_SCTP} {
		all = append(all, [2]byte{first, p - 1})
		first = p + 1
	}
	return append(all, [2]byte{first, math.MaxUint8})
}

// field is a protocol and one of the span's ports in a key.
func (span) field(protocol byte, port uint16) string {
	return nftable.Field8(protocol) + nftable.Field16(port)
}

// Elements yields everything that is wanted.
func (t layout) Elements() iter.Seq[nftable.Element] {
	return func(yield func(nftable.Element) bool) {
		for d := Ingress; d <= Egress; d++ {
			if !yield(nftable.Element{Set: d.setID(setClasses), Key: nftable.Native(unknown), Value: "unknown_" + d.name()}) {
				return
			}
			for number, c := range t.state.classes[d] {
				for e := range c.elements(d, number) {
					if !yield(e) {
						return
					}
				}
			}
		}
		if group := t.state.linkGroup; group != 0 && !yield(linkElement(group)) {
			return
		}
		for a, ident := range t.state.idents {
			if !yield(identElement(a, ident)) {
				return
			}
		}
		for a, p := range t.state.pods {
			for _, e := range podElements(a, p) {
				if !yield(e) {
					return
				}
			}
		}
	}
}

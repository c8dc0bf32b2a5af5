package rules

import (
	"net/netip"
	"slices"

	"github.com/coracle-project/coracle/cluster/nftable"
)

// State is what is wanted. The kernel's elements and the answers of Allowed are made from it.
type State struct {
	podRanges []netip.Prefix
	idents    map[netip.Addr]uint32
	pods      map[netip.Addr]Pod
	classes   [2]map[uint32]*class
	linkGroup uint32
}

// NewState returns a State without pods. The ranges are those of Config.
func NewState(podRanges []netip.Prefix) *State {
	return &State{
		podRanges: podRanges, idents: map[netip.Addr]uint32{}, pods: map[netip.Addr]Pod{},
		classes: [2]map[uint32]*class{{}, {}},
	}
}

// Apply makes a change. If it returns an error, nothing is changed: the kernel's table could not
// hold that.
func (s *State) Apply(change Change) error { return s.apply(&nftable.Batch{}, change) }

// apply makes a change, and collects what becomes different in the kernel.
func (s *State) apply(b *nftable.Batch, change Change) error {
	if err := change.check(); err != nil {
		return err
	}
	for a, ident := range change.Idents {
		if before, exists := s.idents[a]; exists {
			b.Remove(identElement(a, before))
		}
		if ident == 0 {
			delete(s.idents, a)
			continue
		}
		s.idents[a] = ident
		b.Put(identElement(a, ident))
	}
	for a, pod := range change.Pods {
		if before, exists := s.pods[a]; exists {
			for _, e := range podElements(a, before) {
				b.Remove(e)
			}
		}
		if pod == nil {
			delete(s.pods, a)
			continue
		}
		s.pods[a] = *pod
		for _, e := range podElements(a, *pod) {
			b.Put(e)
		}
	}
	for d, classes := range change.Classes {
		for number, c := range classes {
			s.setClass(b, Direction(d), number, c)
		}
	}
	if change.LinkGroup != nil {
		s.setLinkGroup(b, *change.LinkGroup)
	}
	return nil
}

func (s *State) setLinkGroup(b *nftable.Batch, group uint32) {
	if s.linkGroup != 0 {
		b.Remove(linkElement(s.linkGroup))
	}
	if group != 0 {
		b.Put(linkElement(group))
	}
	s.linkGroup = group
}

func (s *State) setClass(b *nftable.Batch, d Direction, number uint32, c *Class) {
	before := s.classes[d][number]
	if before != nil && !b.Whole() {
		for e := range before.elements(d, number) {
			b.Remove(e)
		}
	}
	if c == nil {
		delete(s.classes[d], number)
		if before != nil {
			b.RemoveChain(before.chain(d, number))
		}
		return
	}
	now := newClass(c)
	s.classes[d][number] = now
	if another := before != nil && before.chain(d, number) != now.chain(d, number); before == nil || another {
		b.AddChain(classChain(d, number, now))
		if another {
			b.RemoveChain(before.chain(d, number))
		}
	}
	if !b.Whole() {
		for e := range now.elements(d, number) {
			b.Put(e)
		}
	}
}

// Allowed decides as the kernel's rules do, which see what is forwarded. What the node itself sends
// or receives is always allowed, and is not to be asked about.
func (s *State) Allowed(c Connection) bool {
	source, destination := c.Source.Addr(), c.Destination.Addr()
	return s.allowed(Egress, source, destination, c) && s.allowed(Ingress, destination, source, c)
}

func (s *State) allowed(d Direction, own, peer netip.Addr, c Connection) bool {
	pod, known := s.pods[own]
	if !known {
		return !slices.ContainsFunc(s.podRanges, func(r netip.Prefix) bool { return r.Contains(own) })
	}
	number := pod.Egress
	if d == Ingress {
		number = pod.Ingress
	}
	if number == 0 || own == peer {
		return true
	}
	class := s.classes[d][number]
	return class != nil && class.allows(s.idents[peer], peer, c.Protocol, c.Destination.Port())
}

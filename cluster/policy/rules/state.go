package rules

import (
	"net/netip"
	"slices"
)

// State is what is wanted.
type State struct {
	idents  map[netip.Addr]uint32
	pods    map[netip.Addr]Pod
	classes [2]map[uint32]*Class
}

// NewState returns a State without pods.
func NewState([]netip.Prefix) *State {
	return &State{idents: map[netip.Addr]uint32{}, pods: map[netip.Addr]Pod{}, classes: [2]map[uint32]*Class{{}, {}}}
}

// Apply makes a change.
func (s *State) Apply(change Change) error {
	for a, n := range change.Idents {
		if delete(s.idents, a); n != 0 {
			s.idents[a] = n
		}
	}
	for a, p := range change.Pods {
		if delete(s.pods, a); p != nil {
			s.pods[a] = *p
		}
	}
	for d := range change.Classes {
		for n, c := range change.Classes[d] {
			if delete(s.classes[d], n); c != nil {
				s.classes[d][n] = c
			}
		}
	}
	return nil
}

// Allowed decides as the kernel's rules do.
func (s *State) Allowed(c Connection) bool {
	source, destination := c.Source.Addr(), c.Destination.Addr()
	return source == destination ||
		s.allowed(Egress, s.pods[source].Egress, destination, c) && s.allowed(Ingress, s.pods[destination].Ingress, source, c)
}

func (s *State) allowed(d Direction, number uint32, peer netip.Addr, c Connection) bool {
	if number == 0 {
		return true
	}
	class := s.classes[d][number]
	if class == nil {
		return false
	}
	to := func(p PortRange) bool {
		return p.Protocol == 0 || p.Protocol == c.Protocol && p.First <= c.Destination.Port() && c.Destination.Port() <= p.Last
	}
	ident := s.idents[peer]
	return slices.ContainsFunc(class.Peers, func(p Peer) bool { return p.Ident == ident && to(p.Ports) }) ||
		slices.ContainsFunc(class.Blocks, func(b Block) bool {
			return b.First.BitLen() == peer.BitLen() && !peer.Less(b.First) && !b.Last.Less(peer) && to(b.Ports)
		})
}

package compile

import (
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/coracle-project/coracle/cluster/policy/rules"
)

// Explanation says which policies decide about a connection.
type Explanation struct {
	// Egress is what the source's policies say, Ingress what the destination's do.
	Egress, Ingress Half
}

// Half is one end's part of an Explanation.
type Half struct {
	// Allowed is what the rules do.
	Allowed bool
	// Kind is what the end is to policies.
	Kind Kind
	// Selecting are the policies that are about the pod. Allowing are those of them with a rule for
	// the connection; if there are any and it is not allowed, the rules have no room for these (see
	// Problem).
	Selecting, Allowing []types.NamespacedName
}

// Kind is what an end of a connection is to policies.
type Kind int

// The kinds.
const (
	NoPod     Kind = iota // no policy is about it
	Here                  // a pod of this node
	Elsewhere             // a pod of another node, where its policies are decided
	Itself                // a pod that is both ends
)

// Explain says which policies decide about a new connection. It is about the rules as of the last
// Take.
func (s *State) Explain(c rules.Connection) Explanation {
	source, destination := c.Source.Addr(), c.Destination.Addr()
	return Explanation{Egress: s.half(rules.Egress, source, destination, c), Ingress: s.half(rules.Ingress, destination, source, c)}
}

func (s *State) half(d rules.Direction, own, peer netip.Addr, c rules.Connection) Half {
	p, other := s.owner(own), s.owner(peer)
	switch {
	case p == nil:
		return Half{Allowed: true, Kind: NoPod}
	case own == peer:
		return Half{Allowed: true, Kind: Itself}
	case !p.local:
		return Half{Allowed: true, Kind: Elsewhere}
	case p.class[d] == nil:
		return Half{Allowed: true, Kind: Here}
	}
	h := Half{Kind: Here}
	class := &p.class[d].data
	for _, each := range class.policies {
		name := types.NamespacedName{Namespace: each.object.Namespace, Name: each.object.Name}
		h.Selecting = append(h.Selecting, name)
		if slices.ContainsFunc(each.rules[d], func(r rule) bool { return r.allows(class, peer, other, c) }) {
			h.Allowing = append(h.Allowing, name)
		}
	}
	h.Allowed = allows(s.sent[d][number(p.class[d])], identityNumber(other), peer, c)
	return h
}

// owner returns the pod that has an address, nil for none.
func (s *State) owner(a netip.Addr) *pod {
	at := s.addresses[a]
	if at == nil || len(at.pods) == 0 {
		return nil
	}
	return at.pods[len(at.pods)-1]
}

func identityNumber(p *pod) uint32 {
	if p == nil || p.identity == nil {
		return 0
	}
	return p.identity.number
}

// allows says whether a rule of a class's policy is for a connection with a peer, which is a pod or
// nil.
func (r *rule) allows(c *classData, address netip.Addr, peer *pod, to rules.Connection) bool {
	ports := r.ports
	if c.direction == rules.Ingress {
		ports = withNamed(ports, r.named, c.ports)
	}
	if anyPort(ports, to) && slices.ContainsFunc(r.blocks, func(b span) bool { return within(b.first, b.last, address) }) {
		return true
	}
	if peer == nil || peer.identity == nil {
		return false
	}
	if c.direction == rules.Egress {
		ports = withNamed(ports, r.named, peer.identity.data.ports)
	}
	return anyPort(ports, to) && slices.ContainsFunc(r.peers, func(s *selector) bool { return s.idents[peer.identity] })
}

// allows says whether the rules of a class, nil for none, allow a connection with an identity or
// address.
func allows(c *rules.Class, ident uint32, address netip.Addr, to rules.Connection) bool {
	if c == nil {
		return false
	}
	return slices.ContainsFunc(c.Peers, func(p rules.Peer) bool { return ident != 0 && p.Ident == ident && isPort(p.Ports, to) }) ||
		slices.ContainsFunc(c.Blocks, func(b rules.Block) bool { return within(b.First, b.Last, address) && isPort(b.Ports, to) })
}

func anyPort(ports []rules.PortRange, to rules.Connection) bool {
	return slices.ContainsFunc(ports, func(p rules.PortRange) bool { return isPort(p, to) })
}

func isPort(p rules.PortRange, to rules.Connection) bool {
	port := to.Destination.Port()
	return p.Protocol == 0 || p.Protocol == to.Protocol && p.First <= port && port <= p.Last
}

func within(first, last, a netip.Addr) bool {
	return first.BitLen() == a.BitLen() && !a.Less(first) && !last.Less(a)
}

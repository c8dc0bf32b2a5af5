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
	// the connection that counts; if there are any and it is not allowed, the rules have no room
	// for these (see Problem). ClusterNetworkPolicies have no namespace.
	Selecting, Allowing []types.NamespacedName
	// Ruling is what a ClusterNetworkPolicy decided; nil if none did.
	Ruling *Ruling
	// Unplaced says that the namespace of the pod or of its peer is not known yet, which forbids
	// the connection: ClusterNetworkPolicies select namespaces.
	Unplaced bool
}

// Ruling is a rule of a ClusterNetworkPolicy that accepts or denies a connection.
type Ruling struct {
	Policy, Tier string
	Rule         string // its name, or where it is in the policy; "" for all of a direction
	Accepted     bool
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
	case s.unplaced(p):
		return Half{Kind: Here, Unplaced: true}
	}
	h := Half{Kind: Here}
	class := &p.class[d].data
	h.Allowed = allows(s.sent[d][number(p.class[d])], other.end(peer).ident(), peer, c)
	if class.tiered {
		h.Unplaced = other != nil && s.unplaced(other)
		class.rule(&h, peer, other.end(peer), c)
		return h
	}
	for _, each := range class.policies {
		name := nameOf(each)
		h.Selecting = append(h.Selecting, name)
		if slices.ContainsFunc(each.rules[d], func(r rule) bool { return r.about(class, peer, other.end(peer), c) }) {
			h.Allowing = append(h.Allowing, name)
		}
	}
	return h
}

// rule says which rules decide about a connection, where ClusterNetworkPolicies are about a pod.
func (c *classData) rule(h *Half, address netip.Addr, peer *end, to rules.Connection) {
	for _, each := range c.policies {
		h.Selecting = append(h.Selecting, nameOf(each))
	}
	passed := noTier // the tier that the connection was passed on from
	for _, s := range steps(c) {
		switch {
		case s.policy.tier == passed || !s.about(c, address, peer, to):
		case s.policy.tier == networkTier:
			if name := nameOf(s.policy); !slices.Contains(h.Allowing, name) {
				h.Allowing = append(h.Allowing, name)
			}
		case c.isolated() && s.policy.tier == baselineTier: // NetworkPolicies have decided
			return
		case s.action == pass:
			passed = s.policy.tier
		default:
			h.Ruling = &Ruling{Policy: s.policy.object.GetName(), Tier: s.policy.tier.String(), Rule: s.name, Accepted: s.action == accept}
			if s.action == accept {
				h.Allowing = append(h.Allowing, nameOf(s.policy))
			}
			return
		}
	}
}

func nameOf(p *policy) types.NamespacedName {
	return types.NamespacedName{Namespace: p.object.GetNamespace(), Name: p.object.GetName()}
}

// owner returns the pod that has an address, nil for none.
func (s *State) owner(a netip.Addr) *pod {
	at := s.addresses[a]
	if at == nil || len(at.pods) == 0 {
		return nil
	}
	return at.pods[len(at.pods)-1]
}

// about says whether a rule of a class's policy is about a connection with a peer, which is that of
// a pod or nil.
func (r *rule) about(c *classData, address netip.Addr, peer *end, to rules.Connection) bool {
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
	if slices.ContainsFunc(c.Peers, func(p rules.Peer) bool { return ident != 0 && p.Ident == ident && isPort(p.Ports, to) }) {
		return true
	}
	return !slices.Contains(c.Decided, ident) &&
		slices.ContainsFunc(c.Blocks, func(b rules.Block) bool { return within(b.First, b.Last, address) && isPort(b.Ports, to) })
}

func anyPort(ports []rules.PortRange, to rules.Connection) bool {
	return slices.ContainsFunc(ports, func(p rules.PortRange) bool { return isPort(p, to) })
}

func isPort(p rules.PortRange, to rules.Connection) bool {
	port := to.Destination.Port()
	if p.Protocol == rules.Others {
		return !slices.Contains(portProtocols[:], to.Protocol)
	}
	return p.Protocol == 0 || p.Protocol == to.Protocol && p.First <= port && port <= p.Last
}

func within(first, last, a netip.Addr) bool {
	return first.BitLen() == a.BitLen() && !a.Less(first) && !last.Less(a)
}

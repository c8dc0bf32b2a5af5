package compile

import (
	"net/netip"
	"slices"

	"github.com/coracle-project/coracle/cluster/policy/rules"
)

// intervals divide all addresses so that each network in use contains an interval as a whole or not
// at all. In use are those of policies of classes that a ClusterNetworkPolicy is about. Without
// such a policy there is one interval.
//
// The kernel looks for networks with which a class may talk by address, also for pods. Where a rule
// forbids what others allow, that would allow too much: in such a class, what a pod is selected by
// and where its address is decide together.
type intervals struct {
	starts  []netip.Addr // sorted
	stale   bool         // the networks in use may be others
	tooMany bool
}

// of returns the first address of the interval of another one; the zero Addr for what is before all
// networks.
func (s *intervals) of(a netip.Addr) netip.Addr {
	i, found := slices.BinarySearchFunc(s.starts, a, netip.Addr.Compare)
	if !found {
		i--
	}
	if i < 0 || s.starts[i].BitLen() != a.BitLen() {
		return netip.Addr{}
	}
	return s.starts[i]
}

// survey finds the intervals if they may be others, and returns pods with an address in another one
// than before.
func (s *State) survey() (moved []*pod) {
	if !s.intervals.stale {
		return nil
	}
	now := intervals{}
	var starts []netip.Addr
	for d := range s.classes {
		policies := map[*policy]bool{}
		for _, c := range s.classes[d].cells {
			for _, p := range c.data.policies {
				policies[p] = policies[p] || c.data.tiered
			}
		}
		for p, tiered := range policies {
			for i := range p.rules[d] {
				if blocks := p.rules[d][i].blocks; tiered && !now.tooMany {
					now.tooMany = len(starts)/2+len(blocks) > s.limits.All
					starts = appendEdges(starts, blocks)
				}
			}
		}
	}
	if !now.tooMany {
		slices.SortFunc(starts, netip.Addr.Compare)
		now.starts = slices.Clip(slices.Compact(starts))
	}
	if now.tooMany != s.intervals.tooMany {
		for d := range s.classes {
			for _, c := range s.classes[d].cells {
				if c.data.tiered {
					s.stale[c] = true
				}
			}
		}
	}
	another := !slices.Equal(now.starts, s.intervals.starts)
	if s.intervals = now; !another {
		return nil
	}
	for _, p := range s.pods {
		if slices.ContainsFunc(p.ends, func(e *end) bool { return now.of(e.addresses[0]) != e.interval }) {
			moved = append(moved, p)
		}
	}
	return moved
}

// appendEdges adds where spans begin and have just ended.
func appendEdges(to []netip.Addr, spans []span) []netip.Addr {
	for _, b := range spans {
		to = append(to, b.first)
		if next := b.last.Next(); next.IsValid() {
			to = append(to, next)
		}
	}
	return to
}

// spans are the networks that a meaning names.
func (m *meaning) spans() (all [][]span) {
	for d := rules.Ingress; d <= rules.Egress; d++ {
		for i := range m.rules[d] {
			all = append(all, m.rules[d][i].blocks)
		}
	}
	return all
}

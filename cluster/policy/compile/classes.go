package compile

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/coracle-project/coracle/cluster/policy/rules"
)

type class = cell[*pod, classData]

// classData is what the pods of a class have in common.
type classData struct {
	direction rules.Direction
	policies  []*policy           // sorted by id
	ports     map[portName]uint16 // of the pods, as ingress rules name them
	tiered    bool                // some of the policies are ClusterNetworkPolicies
}

// classOf returns the class of a pod that some policies are about.
func (s *State) classOf(p *pod, d rules.Direction, about []*policy) place[classData] {
	if p.local && s.unplaced(p) {
		return place[classData]{key: "unplaced", data: classData{direction: d}, number: crowded}
	}
	if len(about) == 0 {
		return place[classData]{}
	}
	slices.SortFunc(about, func(a, b *policy) int { return int(a.id) - int(b.id) })
	var key strings.Builder
	var names []portName
	for _, each := range about {
		writeNumber(&key, each.id)
		if d == rules.Ingress {
			names = append(names, each.named...)
		}
	}
	data := classData{direction: d, policies: about}
	data.tiered = slices.ContainsFunc(about, func(p *policy) bool { return p.tier != networkTier })
	data.ports = writePorts(&key, p, names)
	return place[classData]{key: key.String(), data: data}
}

func (s *State) beginClass(c *class) {
	for _, p := range c.data.policies {
		p.classes[c.data.direction][c] = true
	}
	s.stale[c] = true
	s.intervals.stale = s.intervals.stale || c.data.tiered
}

func (s *State) endClass(c *class) {
	s.fits(c)
	for _, p := range c.data.policies {
		delete(p.classes[c.data.direction], c)
	}
	s.stale[c] = true
	s.intervals.stale = s.intervals.stale || c.data.tiered
}

// live says whether a class has pods.
func (s *State) live(c *class) bool { return s.classes[c.data.direction].cells[c.key] == c }

// number is a class' in the kernel. One without a number of its own shares one, of pods that may do
// nothing.
func number(c *class) uint32 {
	if c == nil {
		return 0
	}
	return cmp.Or(c.number, crowded)
}

// compile says what the pods of a class may receive or send. Policies that would take too much room
// are left out of it.
func (s *State) compile(c *class) *rules.Class {
	out := &rules.Class{}
	if c.number == crowded {
		return out
	}
	if c.number == 0 {
		s.tooLarge(c, c.data.policies, "this node's pods have more than %d different sets of policies: some of its pods may do nothing; "+
			"use fewer policies", crowded-1)
		return out
	}
	if c.data.tiered {
		return s.compileTiers(c)
	}
	peers := map[uint32][]rules.PortRange{}
	var areas []area
	room := s.limits.Class
	for _, p := range c.data.policies {
		mine := p.rules[c.data.direction]
		elements := 0
		for i := range mine {
			elements += mine[i].expanded()
		}
		if elements > room {
			s.tooLarge(c, []*policy{p}, "its pods would have more than %d combinations of peers and ports together with those of other "+
				"policies: it allows them nothing; use fewer ports or peers", s.limits.Class)
			continue
		}
		room -= elements
		for i := range mine {
			areas = mine[i].expand(&c.data, peers, areas)
		}
	}
	for _, i := range slices.Sorted(maps.Keys(peers)) {
		for _, ports := range unite(peers[i]) {
			out.Peers = append(out.Peers, rules.Peer{Ident: i, Ports: ports})
		}
	}
	var ok bool
	if out.Blocks, ok = disjoint(areas, s.limits.Class); !ok {
		s.tooLarge(c, c.data.policies, "the ranges of addresses and ports of its pods' policies overlap in too many ways, more than %d: "+
			"none of them is allowed; use fewer", s.limits.Class)
	}
	return out
}

// tooLarge tells that policies are not enforced in full for the pods of a class.
func (s *State) tooLarge(c *class, all []*policy, format string, args ...any) {
	n := notice{ReasonTooLarge, fmt.Sprintf(format, args...)}
	for _, p := range all {
		s.tell(p, Problem{p.object, n.reason, n.message})
		p.large[c] = n
		s.another(p)
	}
}

// fits forgets that policies were too large for a class.
func (s *State) fits(c *class) {
	for _, p := range c.data.policies {
		if _, was := p.large[c]; was {
			delete(p.large, c)
			s.another(p)
		}
	}
}

// expanded is how many elements a rule makes, at most.
func (r *rule) expanded() int {
	sources := len(r.blocks)
	for _, sel := range r.peers {
		sources += len(sel.idents)
	}
	return sources * (len(r.ports) + len(r.named))
}

// expand adds what a rule allows to a class.
func (r *rule) expand(c *classData, peers map[uint32][]rules.PortRange, areas []area) []area {
	ports := r.ports
	if c.direction == rules.Ingress {
		ports = withNamed(ports, r.named, c.ports)
	}
	for _, b := range r.blocks {
		for _, p := range ports {
			areas = append(areas, area{b, p})
		}
	}
	for _, sel := range r.peers {
		for i := range sel.idents {
			if i.number == 0 { // the kernel has no room for it
				continue
			}
			theirs := ports
			if c.direction == rules.Egress {
				theirs = withNamed(ports, r.named, i.data.ports)
			}
			if len(theirs) > 0 {
				peers[i.number] = append(peers[i.number], theirs...)
			}
		}
	}
	return areas
}

// withNamed returns ports with those that have a name at a pod.
func withNamed(ports []rules.PortRange, names []portName, at map[portName]uint16) []rules.PortRange {
	ports = ports[:len(ports):len(ports)]
	for _, name := range names {
		if n := at[name]; n != 0 {
			ports = append(ports, rules.PortRange{Protocol: name.protocol, First: n, Last: n})
		}
	}
	return ports
}

// extent is how many elements something has in the kernel, and how many of them are ranges.
type extent struct{ elements, ranges int }

func extentOf(c *rules.Class) (e extent) {
	if c == nil {
		return e
	}
	e = extent{elements: len(c.Decided)}
	add := func(p rules.PortRange, block bool) {
		n := 1
		if p.Protocol == rules.Others {
			n = rules.OtherRanges
		}
		e.elements += n
		if block || p.First != p.Last {
			e.ranges += n
		}
	}
	for _, p := range c.Peers {
		add(p.Ports, false)
	}
	for _, b := range c.Blocks {
		add(b.Ports, true)
	}
	return e
}

// replace returns the extent with one thing instead of another.
func (e extent) replace(before, now extent) extent {
	return extent{e.elements - before.elements + now.elements, e.ranges - before.ranges + now.ranges}
}

// stricter says whether a class may forbid something that another one allows. Both are sorted.
func stricter(before, now *rules.Class) bool {
	return lacks(now.Peers, before.Peers, func(a, b rules.Peer) int {
		return cmp.Or(cmp.Compare(a.Ident, b.Ident), comparePorts(a.Ports, b.Ports))
	}) || lacks(before.Decided, now.Decided, cmp.Compare) || lacks(now.Blocks, before.Blocks, func(a, b rules.Block) int {
		return cmp.Or(a.First.Compare(b.First), a.Last.Compare(b.Last), comparePorts(a.Ports, b.Ports))
	})
}

// lacks says whether something of some is not in all. Both are sorted.
func lacks[T any](all, some []T, compare func(a, b T) int) bool {
	for _, each := range some {
		at, found := slices.BinarySearchFunc(all, each, compare)
		if !found {
			return true
		}
		all = all[at+1:]
	}
	return false
}

package compile

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"github.com/coracle-project/coracle/cluster/policy/rules"
)

// tier is where a policy has its turn.
type tier int

// The tiers, in their order.
const (
	adminTier tier = iota
	networkTier
	baselineTier
	noTier // after all of them
)

func (t tier) String() string { return [...]string{"Admin", "NetworkPolicy", "Baseline", ""}[t] }

// action is what a rule of a ClusterNetworkPolicy does.
type action int

// The actions.
const (
	deny action = iota
	accept
	pass
)

func (a action) String() string { return [...]string{"Deny", "Accept", "Pass"}[a] }

// step is a rule in its turn.
type step struct {
	*rule
	policy *policy
	open   portSet // the rule's ports, for peers that name none
}

// steps are the rules of a class, in their order: by tier, priority and name. The API leaves open
// which of two policies of the same priority comes first.
func steps(c *classData) []step {
	policies := slices.Clone(c.policies)
	slices.SortFunc(policies, func(a, b *policy) int {
		return cmp.Or(cmp.Compare(a.tier, b.tier), cmp.Compare(a.priority, b.priority),
			cmp.Compare(a.object.GetNamespace(), b.object.GetNamespace()), cmp.Compare(a.object.GetName(), b.object.GetName()))
	})
	var all []step
	for _, p := range policies {
		for i := range p.rules[c.direction] {
			r := &p.rules[c.direction][i]
			ports := r.ports
			if c.direction == rules.Ingress {
				ports = withNamed(ports, r.named, c.ports)
			}
			all = append(all, step{r, p, newPortSet(ports)})
		}
	}
	return all
}

// portsOf are the step's ports for an identity.
func (s *step) portsOf(d rules.Direction, i *identity) portSet {
	if d == rules.Ingress || len(s.named) == 0 {
		return s.open
	}
	return newPortSet(withNamed(s.ports, s.named, i.data.ports))
}

// isolated says whether a NetworkPolicy is about a class.
func (c *classData) isolated() bool {
	return slices.ContainsFunc(c.policies, func(p *policy) bool { return p.tier == networkTier })
}

// decision is made step by step, for what matches one peer.
type decision struct {
	tier                  tier
	isolated              bool
	open, passed, allowed portSet // open: nothing has decided yet
}

func newDecision(isolated bool) decision { return decision{isolated: isolated, open: everyPort} }

// take has a step decide about some ports of what is open. It returns how much work that was.
func (d *decision) take(s *step, ports *portSet) (work int) {
	d.until(s.policy.tier)
	about := d.open.and(ports)
	if about.empty() {
		return ports.size()
	}
	switch {
	case s.policy.tier == networkTier || s.action == accept:
		d.allowed = d.allowed.or(&about)
	case s.action == pass:
		d.passed = d.passed.or(&about)
	}
	work = ports.size() + d.open.size() + d.allowed.size() + d.passed.size()
	d.open = d.open.without(&about)
	return work
}

// until ends the tiers before another one.
func (d *decision) until(t tier) {
	for ; d.tier < t; d.tier++ {
		if d.tier == networkTier {
			if d.isolated { // whatever no rule allows is forbidden
				d.open = portSet{}
			}
			continue
		}
		d.open, d.passed = d.open.or(&d.passed), portSet{}
	}
}

// over says that nothing is left to decide.
func (d *decision) over() bool { return d.open.empty() && d.passed.empty() }

// end returns what is allowed in the end: by a rule, or because none forbids it.
func (d *decision) end() portSet {
	d.until(noTier)
	return d.allowed.or(&d.open)
}

// compiler compiles a class that ClusterNetworkPolicies are about.
type compiler struct {
	*classData
	steps    []step
	isolated bool
	budget   int // how much work is left to do
}

// compileTiers says what the pods of a class may receive or send, where ClusterNetworkPolicies are
// about them. If it would take too much room or time, they may do nothing: no rule can be left out
// where others depend on it.
func (s *State) compileTiers(c *class) *rules.Class {
	const effort = 64 // per element
	w := &compiler{classData: &c.data, steps: steps(&c.data), isolated: c.data.isolated(), budget: effort * s.limits.Class}
	out := &rules.Class{Decided: []uint32{crowdedIdent}}
	ok := !s.intervals.tooMany && w.compile(out, s.limits.Class) && extentOf(out).elements <= s.limits.Class
	if !ok {
		s.tooLarge(c, c.data.policies,
			"the rules of its pods' policies have more than %d combinations of peers and ports together: these pods may "+
				"do nothing; use fewer rules, ports or networks", s.limits.Class)
		return &rules.Class{}
	}
	slices.Sort(out.Decided)
	slices.SortFunc(out.Peers, func(a, b rules.Peer) int {
		return cmp.Or(cmp.Compare(a.Ident, b.Ident), comparePorts(a.Ports, b.Ports))
	})
	return out
}

// turn is an identity that some steps select.
type turn struct {
	*identity
	steps []int
}

// turns finds the identities that steps select, sorted by their intervals.
func (w *compiler) turns() ([]turn, bool) {
	by := map[*identity][]int{}
	for i := range w.steps {
		for _, sel := range w.steps[i].peers {
			if w.budget -= len(sel.idents); w.budget < 0 {
				return nil, false
			}
			for ident := range sel.idents {
				if n := len(by[ident]); ident.number != 0 && (n == 0 || by[ident][n-1] != i) {
					by[ident] = append(by[ident], i)
				}
			}
		}
	}
	var all []turn
	for ident, at := range by {
		all = append(all, turn{ident, at})
	}
	slices.SortFunc(all, func(a, b turn) int {
		return cmp.Or(a.data.interval.Compare(b.data.interval), cmp.Compare(a.number, b.number))
	})
	return all, true
}

// compile walks along all addresses. Between two edges of networks, the same steps match an address
// for itself; identities there match others, too.
func (w *compiler) compile(out *rules.Class, limit int) bool {
	turns, ok := w.turns()
	if !ok {
		return false
	}
	edges := w.edges()
	for len(turns) > 0 && !turns[0].data.interval.IsValid() { // before all networks
		if !w.identity(out, turns[0], nil) {
			return false
		}
		turns = turns[1:]
	}
	for _, family := range everywhere {
		var active []int
		at := family.first
		for at.IsValid() && at.BitLen() == family.first.BitLen() {
			for ; len(edges) > 0 && edges[0].at == at; edges = edges[1:] {
				active = edges[0].pass(active)
			}
			last, next := family.last, netip.Addr{}
			if len(edges) > 0 && edges[0].at.BitLen() == at.BitLen() {
				next = edges[0].at
				last = next.Prev()
			}
			allowed, ok := w.decide(nil, active)
			if !ok || len(out.Blocks)+len(out.Peers) > limit {
				return false
			}
			out.Blocks = appendBlocks(out.Blocks, span{at, last}, allowed.ranges())
			for len(turns) > 0 && within(at, last, turns[0].data.interval) {
				if !w.identity(out, turns[0], active) {
					return false
				}
				turns = turns[1:]
			}
			at = next
		}
	}
	return true
}

// edge is where the networks of a step begin, or the address after their end.
type edge struct {
	at    netip.Addr
	step  int
	begin bool
}

// edges returns the edges of all steps' networks, in the order of their addresses.
func (w *compiler) edges() []edge {
	var edges []edge
	for i := range w.steps {
		for _, b := range w.steps[i].blocks {
			edges = append(edges, edge{b.first, i, true})
			if next := b.last.Next(); next.IsValid() {
				edges = append(edges, edge{next, i, false})
			}
		}
	}
	slices.SortFunc(edges, func(a, b edge) int { return a.at.Compare(b.at) })
	return edges
}

// pass returns the steps that match behind an edge, given those that match before it.
func (e edge) pass(active []int) []int {
	i, found := slices.BinarySearch(active, e.step)
	switch {
	case e.begin && !found:
		return slices.Insert(active, i, e.step)
	case !e.begin && found:
		return slices.Delete(active, i, i+1)
	}
	return active
}

// appendBlocks adds what is allowed to a span that follows the last one.
func appendBlocks(blocks []rules.Block, s span, ports []rules.PortRange) []rules.Block {
	// The blocks of the last span are the last ones, and they all have its end.
	n := len(blocks)
	if before := n - len(ports); len(ports) > 0 && before >= 0 && blocks[n-1].Last.Next() == s.first &&
		blocks[before].First == blocks[n-1].First && (before == 0 || blocks[before-1].First != blocks[n-1].First) &&
		slices.EqualFunc(blocks[before:], ports, func(b rules.Block, p rules.PortRange) bool { return b.Ports == p }) {
		for i := range blocks[before:] {
			blocks[before+i].Last = s.last
		}
		return blocks
	}
	for _, p := range ports {
		blocks = append(blocks, rules.Block{First: s.first, Last: s.last, Ports: p})
	}
	return blocks
}

// identity decides about an identity where the steps of active match any address.
func (w *compiler) identity(out *rules.Class, t turn, active []int) bool {
	match := slices.Concat(t.steps, active)
	slices.Sort(match)
	allowed, ok := w.decide(t.identity, slices.Compact(match))
	if !ok {
		return false
	}
	ports := allowed.ranges()
	if len(ports) != 1 || ports[0] != allPorts {
		out.Decided = append(out.Decided, t.number)
	}
	for _, p := range ports {
		out.Peers = append(out.Peers, rules.Peer{Ident: t.number, Ports: p})
	}
	return true
}

// decide returns the ports that are allowed where some steps match: with an identity, or with an
// address that has none.
func (w *compiler) decide(i *identity, match []int) (portSet, bool) {
	d := newDecision(w.isolated)
	for _, at := range match {
		s := &w.steps[at]
		ports := s.open
		if i != nil {
			ports = s.portsOf(w.direction, i)
		}
		if w.budget -= d.take(s, &ports); w.budget < 0 {
			return portSet{}, false
		}
		if d.over() {
			break
		}
	}
	return d.end(), true
}

// review returns what is to be said of ClusterNetworkPolicies that say something else than before.
func (s *State) review() (all []Review) {
	for _, name := range slices.Sorted(maps.Keys(s.reviewed)) {
		if p := s.clusterPolicy(name); p != nil {
			all = append(all, reviewOf(p))
		}
	}
	clear(s.reviewed)
	return all
}

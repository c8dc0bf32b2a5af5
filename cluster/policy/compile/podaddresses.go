package compile

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/coracle-project/coracle/cluster/policy/rules"
)

// address is one that pods have.
type address struct {
	pods []*pod // the last one has it; others had it before, and were not told to be gone yet
	// What was taken: an identity, and classes if it is known.
	identity uint32
	classes  rules.Pod
	known    bool
	owner    *pod // if it is known
}

func (s *State) claim(p *pod) {
	for _, a := range p.addresses {
		at := s.addresses[a]
		if at == nil {
			at = &address{}
			s.addresses[a] = at
		}
		// The last one counts. One that the kubelet has admitted goes before what the API says of
		// others.
		n := len(at.pods)
		for !p.admitted && n > 0 && at.pods[n-1].admitted {
			n--
		}
		at.pods = slices.Insert(at.pods, n, p)
	}
	s.move(p.addresses)
}

func (s *State) release(p *pod) {
	s.move(p.addresses)
	for _, a := range p.addresses {
		at := s.addresses[a]
		at.pods = slices.DeleteFunc(at.pods, func(other *pod) bool { return other == p })
		if len(at.pods) == 0 && !at.known && at.identity == 0 { // there is nothing to take back
			delete(s.addresses, a)
			delete(s.moved, a)
		}
	}
	p.addresses = nil
}

// move has addresses looked at again.
func (s *State) move(all []netip.Addr) {
	for _, a := range all {
		s.moved[a] = true
	}
}

// Result is what is different since the last Take.
type Result struct {
	Change rules.Change
	// Recheck are addresses whose connections may be forbidden now.
	Recheck map[netip.Addr]bool
	// Gone are addresses of pods of this node that are gone. Another pod may have one already.
	Gone     map[netip.Addr]bool
	Problems []Problem
	// Reviews are about ClusterNetworkPolicies that say something else than before, or of which
	// something else is not enforced.
	Reviews []Review
}

// Take returns what is different since the last time; after Reset, all there is.
func (s *State) Take() Result {
	s.sort()
	s.wishedIdents, s.wishedClasses = nil, nil
	r := Result{
		Change: rules.Change{
			Idents: map[netip.Addr]uint32{}, Pods: map[netip.Addr]*rules.Pod{},
			Classes: [2]map[uint32]*rules.Class{{}, {}},
		},
		Recheck: map[netip.Addr]bool{}, Gone: map[netip.Addr]bool{},
	}
	s.takeClasses(&r)
	for a := range s.moved {
		s.takeAddress(&r, a)
	}
	clear(s.moved)
	s.fresh = false
	r.Problems, s.problems = s.problems, nil
	r.Reviews = s.review()
	return r
}

func (s *State) takeClasses(r *Result) {
	for sel := range s.shifted {
		for d := range sel.peer {
			for p := range sel.peer[d] {
				for c := range p.classes[d] {
					s.stale[c] = true
				}
			}
		}
	}
	clear(s.shifted)
	before := s.kept
	for c := range s.stale {
		s.takeClass(r, c)
	}
	clear(s.stale)
	// What others gave up may be enough for those that have none.
	for _, c := range slices.Collect(maps.Keys(s.short)) {
		if s.kept.elements >= before.elements && s.kept.ranges >= before.ranges {
			break
		}
		s.takeClass(r, c)
	}
}

func (s *State) takeClass(r *Result, c *class) {
	d, n := c.data.direction, number(c)
	before := s.sent[d][n]
	s.fits(c)
	if !s.live(c) {
		delete(s.short, c)
		if s.numbered(d, n) {
			return // by another one, which is stale, too
		}
		if before != nil {
			s.kept = s.kept.replace(extentOf(before), extent{})
			delete(s.sent[d], n)
			r.Change.Classes[d][n] = nil
		}
		return
	}
	now := s.compile(c)
	delete(s.short, c)
	if kept := s.kept.replace(extentOf(before), extentOf(now)); kept.elements > s.limits.All || kept.ranges > s.limits.Ranges {
		s.short[c] = true
		s.tooLarge(c, c.data.policies, "the policies of this node's pods have more than %d combinations of peers and ports, or more than %d "+
			"ranges: it allows some of its pods nothing; use fewer", s.limits.All, s.limits.Ranges)
		now = &rules.Class{}
	}
	if before != nil && slices.Equal(before.Peers, now.Peers) && slices.Equal(before.Blocks, now.Blocks) &&
		slices.Equal(before.Decided, now.Decided) {
		return
	}
	s.kept = s.kept.replace(extentOf(before), extentOf(now))
	s.sent[d][n] = now
	r.Change.Classes[d][n] = now
	if before == nil || !stricter(before, now) { // the pods of a new class are of another one than before
		return
	}
	for p := range c.members {
		for _, a := range p.addresses {
			r.Recheck[a] = true
		}
	}
}

// takeAddress says what an address is now.
func (s *State) takeAddress(r *Result, a netip.Addr) {
	at := s.addresses[a]
	var owner *pod
	if n := len(at.pods); n > 0 {
		owner = at.pods[n-1]
	}
	identity := owner.end(a).ident()
	if identity != at.identity {
		r.Change.Idents[a] = identity
		if at.identity != 0 || s.cluster > 0 {
			r.Recheck[a] = true
		}
		at.identity = identity
	}
	another := at.known && owner != at.owner
	if another {
		r.Gone[a] = true
	}
	if owner == nil || !owner.local {
		if at.known {
			r.Change.Pods[a] = nil
			at.known, at.classes, at.owner = false, rules.Pod{}, nil
		}
		if owner == nil {
			delete(s.addresses, a)
		}
		return
	}
	at.owner = owner
	classes := rules.Pod{Ingress: number(owner.class[rules.Ingress]), Egress: number(owner.class[rules.Egress])}
	if at.known && classes == at.classes && !another { // for another pod, connections of the last one end first
		return
	}
	r.Change.Pods[a] = &classes
	isolated := classes != (rules.Pod{})
	if isolated && (at.known || s.fresh || !owner.admitted) {
		r.Recheck[a] = true
	}
	at.known, at.classes = true, classes
}

// Pending says whether Take has anything to look at.
func (s *State) Pending() bool {
	return s.fresh || s.intervals.stale || len(s.dirty)+len(s.stale)+len(s.shifted)+len(s.moved)+len(s.problems)+len(s.reviewed) > 0
}

// Reset has the next Take return all there is.
func (s *State) Reset() {
	s.fresh = true
	for a, at := range s.addresses {
		s.moved[a] = true
		at.identity, at.classes, at.known, at.owner = 0, rules.Pod{}, false, nil
	}
	s.sent, s.kept = [2]map[uint32]*rules.Class{{}, {}}, extent{}
	clear(s.stale)
	clear(s.short)
	for d := range s.classes {
		for _, c := range s.classes[d].cells {
			s.stale[c] = true
		}
	}
}

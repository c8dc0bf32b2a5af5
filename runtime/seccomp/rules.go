package seccomp

import (
	"cmp"
	"fmt"
	"slices"
)

// rule is an action for calls whose arguments are so.
type rule struct {
	when   []comparison // by ascending arg; all must hold
	action uint32
}

// rules of one call, such that none is superfluous because of another.
type rules []rule

// maxRules is how many rules a call may have: each needs two instructions or more.
const maxRules = maxInsns / 2

// byNumber are the rules that a profile has for an architecture.
func (p *profile) byNumber(a *arch) (map[uint32]rules, error) {
	all := make(map[uint32]rules, len(p.rules)) // it would grow ten times
	for _, named := range p.rules {
		if named.action == p.other {
			continue
		}
		c := named.call
		for _, when := range named.any {
			r := rule{when: normal(when, a), action: named.action}
			if m, ok := c.mux(a); ok {
				if err := add(all, m.nr, r.inMux(m)); err != nil {
					return nil, fmt.Errorf("rules for %s on %s: %w", c.name, a.name, err)
				}
			}
			if nr, ok := c.number(a); ok {
				if err := add(all, nr, r); err != nil {
					return nil, fmt.Errorf("rules for %s on %s: %w", c.name, a.name, err)
				}
			}
		}
	}
	return all, nil
}

// last is the highest number among the calls that the profile names, 0 if there is none:
// runc takes 0 for none as well. It leaves out what is multiplexed.
func (p *profile) last(a *arch) uint32 {
	var last uint32
	for _, named := range p.rules {
		if _, ok := named.call.mux(a); ok {
			continue
		}
		if nr, ok := named.call.number(a); ok {
			last = max(last, nr)
		}
	}
	return last
}

// normal are a rule's comparisons as they are on a, sorted.
func normal(when []comparison, a *arch) []comparison {
	var list []comparison
	for _, c := range when {
		if !a.wide {
			c = c.halve()
		}
		if !c.always() {
			list = append(list, c)
		}
	}
	slices.SortFunc(list, func(c, d comparison) int { return cmp.Compare(c.arg, d.arg) })
	return list
}

// inMux is the rule for the call within another one, whose argument 0 tells them apart. The
// other comparisons stay: libseccomp keeps them, too, although the arguments are elsewhere.
func (r rule) inMux(m muxed) rule {
	when := []comparison{{arg: 0, op: equal, value: m.call, mask: uint64(^uint32(0))}}
	for _, c := range r.when {
		if c.arg != 0 {
			when = append(when, c)
		}
	}
	return rule{when: when, action: r.action}
}

// add gives a call another rule. A rule with all comparisons of another one and more is
// superfluous: the shorter one has the say. If the actions differ and the longer one was
// there first, that hardly was meant, and is refused, as libseccomp does.
func add(all map[uint32]rules, nr uint32, r rule) error {
	list := all[nr]
	for _, old := range list {
		if extends(r.when, old.when) {
			if len(r.when) == len(old.when) && len(r.when) > 0 && r.action != old.action {
				return errConflict
			}
			return nil
		}
	}
	kept := list[:0]
	for _, old := range list {
		if !extends(old.when, r.when) {
			kept = append(kept, old)
		} else if len(r.when) > 0 && r.action != old.action {
			return errConflict
		}
	}
	if len(kept) >= maxRules {
		return fmt.Errorf("more than %d with args", maxRules)
	}
	all[nr] = append(kept, r)
	return nil
}

var errConflict = fmt.Errorf("two with different actions hold for the same arguments: remove one")

// extends tells whether short is the beginning of long.
func extends(long, short []comparison) bool {
	return len(long) >= len(short) && slices.Equal(long[:len(short)], short)
}

// sorted are the rules in the order in which they are tried: each before the first that
// comes after it.
func (l rules) sorted() rules {
	list := make(rules, 0, len(l))
	for _, r := range l {
		at := slices.IndexFunc(list, func(old rule) bool { return r.before(old) })
		if at < 0 {
			at = len(list)
		}
		list = slices.Insert(list, at, r)
	}
	return list
}

func (r rule) before(s rule) bool {
	for i := range min(len(r.when), len(s.when)) {
		if o, apart := r.when[i].before(s.when[i]); o != 0 || apart {
			return o < 0
		}
	}
	return len(r.when) < len(s.when)
}

package doctor

import (
	"bytes"
	"fmt"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
)

// ruleset is a table of nftables, which packets are followed through as the kernel does it. What
// the kernel would look at and doctor does not know makes a rule one that may match.
type ruleset struct {
	conn   *nftables.Conn
	table  *nftables.Table
	rules  map[string][]*nftables.Rule      // nil for a chain whose rules cannot be read
	sets   map[string][]nftables.SetElement // nil for one that cannot be read
	unread []error                          // why rules could not be read
}

func newRuleset(c *nftables.Conn, t *nftables.Table) *ruleset {
	return &ruleset{conn: c, table: t, rules: map[string][]*nftables.Rule{}, sets: map[string][]nftables.SetElement{}}
}

// match says whether a rule matches a packet.
type match int

const (
	yes match = iota
	no
	maybe
)

// end is what becomes of a packet in a chain.
type end int

const (
	goesOn end = iota // to what comes after the chain
	accepted
	dropped
)

// fate is the way of a packet through a chain.
type fate struct {
	*ruleset
	packet
	visited map[string]bool // chains
	// mayAccept says that a rule accepts the packet, or that it leaves a chain early, if something
	// holds that is not known.
	mayAccept bool
}

// deepest bounds how deep chains jump, as the kernel does.
const deepest = 16

// drops says whether a base chain drops a packet, unless something holds that is not known: sure is
// false then. It notes the chains that the packet visits.
func (r *ruleset) drops(chain *nftables.Chain, p packet, visited map[string]bool) (drops, sure bool) {
	f := &fate{ruleset: r, packet: p, visited: visited}
	switch f.pass(chain.Name, 0) {
	case accepted:
		return false, true
	case dropped:
		return true, !f.mayAccept
	}
	return chain.Policy != nil && *chain.Policy == nftables.ChainPolicyDrop, !f.mayAccept
}

// pass is what a chain does.
func (f *fate) pass(chain string, depth int) end {
	if depth > deepest {
		return goesOn
	}
	f.visited[chain] = true
	rules := f.rulesOf(chain)
	f.mayAccept = f.mayAccept || rules == nil
	for _, rule := range rules {
		state := registers{fate: f}
		matches, verdicts := state.run(rule.Exprs)
		if matches == no {
			continue
		}
		for _, verdict := range verdicts {
			then, leaves := f.follow(verdict, depth)
			switch {
			case matches == maybe: // rules that drop are mostly about other packets
				f.mayAccept = f.mayAccept || then == accepted || then == goesOn && leaves
			case then != goesOn || leaves:
				return then
			}
		}
	}
	return goesOn
}

// follow is what a verdict does, and whether the chain ends with it.
func (f *fate) follow(verdict *expr.Verdict, depth int) (then end, leaves bool) {
	switch verdict.Kind {
	case expr.VerdictAccept, expr.VerdictStolen, expr.VerdictQueue:
		return accepted, false
	case expr.VerdictDrop:
		return dropped, false
	case expr.VerdictReturn:
		return goesOn, true
	case expr.VerdictJump:
		return f.pass(verdict.Chain, depth+1), false
	case expr.VerdictGoto:
		return f.pass(verdict.Chain, depth+1), true
	}
	return goesOn, false
}

// rulesOf returns those of a chain, nil if they cannot be read.
func (r *ruleset) rulesOf(chain string) []*nftables.Rule {
	rules, exists := r.rules[chain]
	if !exists {
		var err error
		rules, err = r.conn.GetRules(r.table, &nftables.Chain{Name: chain, Table: r.table}) // none, if it has just gone
		switch {
		case err != nil:
			rules = nil
			r.unread = append(r.unread, fmt.Errorf("read rules of chain %s of nftables table %s: %w", chain, r.table.Name, err))
		case rules == nil:
			rules = []*nftables.Rule{}
		}
		r.rules[chain] = rules
	}
	return rules
}

// elements returns those of a set, nil if it cannot be read.
func (r *ruleset) elements(set string) []nftables.SetElement {
	elements, exists := r.sets[set]
	if !exists {
		s, err := r.conn.GetSetByName(r.table, set)
		if err == nil {
			elements, err = r.conn.GetSetElements(s)
		}
		switch {
		case err != nil:
			elements = nil
		case elements == nil:
			elements = []nftables.SetElement{}
		}
		r.sets[set] = elements
	}
	return elements
}

// inRange compares with a range of each field of a concatenation. Fields fill whole words.
func inRange(value known, e nftables.SetElement) match {
	if !value.whole() {
		return maybe
	}
	if bytes.Compare(value.data, e.Key) < 0 || bytes.Compare(value.data, e.KeyEnd) > 0 {
		return no
	}
	for at := 0; at < len(e.Key); at += 4 { // exact for fields of a word, such as addresses of IPv4
		end := min(at+4, len(e.Key))
		if bytes.Compare(value.data[at:end], e.Key[at:end]) < 0 || bytes.Compare(value.data[at:end], e.KeyEnd[at:end]) > 0 {
			return maybe
		}
	}
	return yes
}

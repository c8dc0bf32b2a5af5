package seccomp

import "math"

// nothing is loaded: no word has this offset.
const nothing = ^uint32(0)

// maxShared is up to how many rules of one call a decision tree is tried for.
const maxShared = 64

// arguments is the point from which a call's rules are decided; other is the action if
// none holds.
//
// In a decision tree what was learnt from one rule is used for the next: five rules for the
// same argument look at its upper half once. That can also take more instructions than a
// chain of rules, and in bad cases far more: the shorter one is taken.
func (g *graph) arguments(list rules, wide bool, other uint32) *node {
	if len(list[0].when) == 0 {
		return g.ret(list[0].action) // it is alone
	}
	list = list.sorted()
	chain := g.ret(other)
	for i := len(list) - 1; i >= 0; i-- {
		one := builder{graph: g, rules: list[i : i+1], wide: wide, other: chain, budget: math.MaxInt}
		chain = one.from(0, nil, nothing)
	}
	if len(list) == 1 || len(list) > maxShared {
		return chain
	}
	limit := size(chain)
	all := builder{graph: g, rules: list, wide: wide, other: g.ret(other), budget: min(4*limit, g.effort)}
	before := all.budget
	tree := all.from(0, nil, nothing)
	g.effort -= before - all.budget
	if all.budget > 0 && size(tree) <= limit {
		return tree
	}
	return chain
}

// size is the number of instructions from n on.
func size(n *node) int {
	seen := map[*node]bool{}
	var visit func(*node)
	visit = func(n *node) {
		if n != nil && !seen[n] {
			seen[n] = true
			visit(n.yes)
			visit(n.no)
		}
	}
	visit(n)
	return len(seen)
}

// builder makes the decision tree of some rules.
type builder struct {
	graph *graph
	rules rules
	wide  bool
	other *node // if no rule holds
	// budget is how many more tests there may be. When it is used up the tree is useless.
	budget int
}

// from is the point at which it is known that no rule before i holds, and word loaded is
// loaded.
func (b *builder) from(i int, k *known, loaded uint32) *node {
	for ; i < len(b.rules); i++ {
		v, t := b.rules[i].holds(b.wide, k)
		switch v {
		case yes:
			return b.graph.ret(b.rules[i].action)
		case unknown:
			if b.budget--; b.budget <= 0 {
				return b.other
			}
			return b.branch(i, t, k, loaded)
		}
	}
	return b.other
}

// holds is whether all comparisons do, and a test that would tell more if that is unknown.
func (r rule) holds(wide bool, k *known) (verdict, test) {
	for _, c := range r.when {
		if v, t := c.holds(wide, k); v != yes {
			return v, t
		}
	}
	return yes, test{}
}

func (b *builder) branch(i int, t test, k *known, loaded uint32) *node {
	g := b.graph
	after := t.word
	if t.op == isMasked && !t.oneJump() {
		after = nothing // the masked word is no longer whole
	}
	yes := b.from(i, &known{test: t, is: true, rest: k}, after)
	no := b.from(i, &known{test: t, is: false, rest: k}, after)
	if yes == no && (yes.code == codeReturn || yes.code == codeLoad) {
		return yes // and what is loaded does not matter
	}
	var n *node
	switch {
	case t.op == isEqual:
		n = g.node(node{code: codeEqual, k: t.value, yes: yes, no: no})
	case t.op == isGreater:
		n = g.node(node{code: codeAbove, k: t.value, yes: yes, no: no})
	case t.value == 0: // none of the bits
		n = g.node(node{code: codeSet, k: t.mask, yes: no, no: yes})
	case t.oneJump(): // the bit
		n = g.node(node{code: codeSet, k: t.mask, yes: yes, no: no})
	default:
		n = g.node(node{code: codeEqual, k: t.value, yes: yes, no: no})
		n = g.node(node{code: codeAnd, k: t.mask, yes: n})
	}
	if t.word != loaded {
		n = g.load(t.word, n)
	}
	return n
}

// oneJump tells a masked test that needs no masking: BPF_JSET asks whether any bit is set.
func (t test) oneJump() bool {
	return t.value == 0 || t.value == t.mask && t.mask&(t.mask-1) == 0
}

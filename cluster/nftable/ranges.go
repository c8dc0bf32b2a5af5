package nftable

import (
	"fmt"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
)

// fewRanges is how many ranges are removed one by one. Each takes the kernel (6.18) time that grows
// with the set, while no one can change any table: 1,000 of 1,000 took 3.7 s, and to make such a
// set takes 11 ms.
const fewRanges = 8

// slow returns the sets from which more ranges are to be removed than a few: it is faster to make
// them again.
func (k *kernel) slow(removed *elements) []int {
	var sets []int
	for i, list := range removed.lists {
		if k.sets[i].Interval && list.count > fewRanges {
			sets = append(sets, i)
		}
	}
	return sets
}

// allOf has all elements of some sets added, and none removed. It returns the sets.
func (k *kernel) allOf(sets []int, removed, added *elements) []int {
	if len(sets) == 0 {
		return nil
	}
	for _, i := range sets {
		removed.forget(i)
		added.forget(i)
	}
	for e := range k.layout.Elements() {
		if slices.Contains(sets, e.Set) {
			added.add(e)
		}
	}
	return sets
}

// makeAgain makes sets again, without elements, with the rules that refer to them.
func (k *kernel) makeAgain(t *transaction, sets []int) error {
	if len(sets) == 0 {
		return nil
	}
	var users []Chain
	for _, ch := range k.layout.Chains() {
		if slices.ContainsFunc(ch.Rules, func(rule []expr.Any) bool { return k.refers(rule, sets) }) {
			users = append(users, ch)
			t.FlushChain(&nftables.Chain{Table: k.table, Name: ch.Name})
		}
	}
	for _, i := range sets {
		t.DelSet(k.sets[i])
		if err := t.AddSet(k.sets[i], nil); err != nil {
			return fmt.Errorf("set %s: %w", k.sets[i].Name, err)
		}
	}
	for _, ch := range users {
		if err := k.addRules(t, ch); err != nil {
			return err
		}
	}
	return nil
}

func (k *kernel) refers(rule []expr.Any, sets []int) bool {
	return slices.ContainsFunc(rule, func(e expr.Any) bool {
		l, ok := e.(*expr.Lookup)
		return ok && slices.ContainsFunc(sets, func(i int) bool { return k.sets[i].Name == l.SetName })
	})
}

package seccomp

import (
	"cmp"
	"fmt"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// comparison is a condition on one argument.
type comparison struct {
	arg   uint // 0 to 5
	op    operator
	value uint64
	// mask is what masked looks at, and all bits for the other operators.
	mask uint64
}

type operator uint8

const (
	notEqual operator = iota
	less
	lessEqual
	equal
	greaterEqual
	greater
	masked
)

var operators = map[specs.LinuxSeccompOperator]operator{
	specs.OpNotEqual:     notEqual,
	specs.OpLessThan:     less,
	specs.OpLessEqual:    lessEqual,
	specs.OpEqualTo:      equal,
	specs.OpGreaterEqual: greaterEqual,
	specs.OpGreaterThan:  greater,
	specs.OpMaskedEqual:  masked,
}

// maxArgs is how many arguments a system call has.
const maxArgs = 6

// comparisons are the alternatives that a rule's args mean, with no comparison in the only
// one if there are no args.
func comparisons(args []specs.LinuxSeccompArg) ([][]comparison, error) {
	all := make([]comparison, 0, len(args))
	var count [maxArgs]int
	repeated := false
	for i, a := range args {
		op, ok := operators[a.Op]
		if !ok {
			return nil, fmt.Errorf("args[%d]: %q is not an operator, expected one like SCMP_CMP_EQ", i, a.Op)
		}
		if a.Index >= maxArgs {
			return nil, fmt.Errorf("args[%d]: index %d: system calls have arguments 0 to 5", i, a.Index)
		}
		c := comparison{arg: a.Index, op: op, value: a.Value, mask: ^uint64(0)}
		if op == masked {
			c.mask, c.value = a.Value, a.ValueTwo&a.Value
		}
		count[a.Index]++
		repeated = repeated || count[a.Index] > 1
		all = append(all, c)
	}
	if !repeated {
		return [][]comparison{all}, nil
	}
	each := make([][]comparison, len(all))
	for i, c := range all {
		each[i] = []comparison{c}
	}
	return each, nil
}

// halve is the comparison for an architecture whose arguments have 32 bits.
func (c comparison) halve() comparison {
	c.value, c.mask = uint64(uint32(c.value)), uint64(uint32(c.mask))
	return c
}

// always tells a comparison that holds for any argument because it looks at none of it.
func (c comparison) always() bool { return c.op == masked && c.mask == 0 }

// before tells whether libseccomp tries c before d: later arguments first, then equality
// before upper before lower bounds, then the narrower bound. It looks at halves one after
// the other; halves under different masks have no order (apart), nor has what follows.
func (c comparison) before(d comparison) (order int, apart bool) {
	if o := cmp.Compare(d.arg, c.arg); o != 0 {
		return o, false
	}
	if o := cmp.Compare(c.op.rank(), d.op.rank()); o != 0 {
		return o, false
	}
	for _, shift := range []uint{32, 0} {
		o := cmp.Compare(uint32(d.value>>shift), uint32(c.value>>shift))
		if c.op == less || c.op == lessEqual {
			o = -o
		}
		if o != 0 {
			return o, false
		}
		if uint32(c.mask>>shift) != uint32(d.mask>>shift) {
			return 0, true
		}
	}
	return 0, false
}

func (o operator) rank() int {
	switch o {
	case less, lessEqual:
		return 1
	case greaterEqual, greater:
		return 2
	}
	return 0
}

// holds is whether the comparison holds given what is known, and if that does not tell, the
// test whose outcome would bring it nearer.
func (c comparison) holds(wide bool, k *known) (verdict, test) {
	high, low := uint32(c.value>>32), uint32(c.value)
	ask := func(words ...test) (verdict, test) {
		for _, t := range words {
			if v := k.outcome(t); v != yes {
				return v, t
			}
		}
		return yes, test{}
	}
	// above is c.arg > v.
	above := func(v uint64) (verdict, test) {
		h, l := uint32(v>>32), uint32(v)
		if !wide {
			return ask(test{word: lowWord(c.arg), op: isGreater, value: l})
		}
		if v, t := ask(test{word: highWord(c.arg), op: isGreater, value: h}); v != no {
			return v, t
		}
		return ask(test{word: highWord(c.arg), op: isEqual, value: h},
			test{word: lowWord(c.arg), op: isGreater, value: l})
	}
	atLeast := func(v uint64) (verdict, test) {
		if v == 0 {
			return yes, test{}
		}
		return above(v - 1)
	}
	same := func() (verdict, test) {
		if !wide {
			return ask(maskTest(lowWord(c.arg), uint32(c.mask), low))
		}
		return ask(maskTest(highWord(c.arg), uint32(c.mask>>32), high),
			maskTest(lowWord(c.arg), uint32(c.mask), low))
	}
	switch c.op {
	case notEqual:
		return not(same())
	case less:
		return not(atLeast(c.value))
	case lessEqual:
		return not(above(c.value))
	case greaterEqual:
		return atLeast(c.value)
	case greater:
		return above(c.value)
	}
	return same() // equal, masked
}

// Offsets in struct seccomp_data, on a little-endian machine.
const (
	numberWord = 0
	archWord   = 4
)

func lowWord(arg uint) uint32  { return uint32(16 + 8*arg) }
func highWord(arg uint) uint32 { return lowWord(arg) + 4 }

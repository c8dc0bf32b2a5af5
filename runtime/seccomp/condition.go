package seccomp

// test is a question about one 32-bit word of struct seccomp_data that has the answers yes
// and no.
type test struct {
	word  uint32 // its offset
	op    testOp
	value uint32
	mask  uint32 // for isMasked
}

type testOp uint8

const (
	isEqual   testOp = iota // word == value
	isGreater               // word > value
	isMasked                // word & mask == value
)

func maskTest(word, mask, value uint32) test {
	if mask == ^uint32(0) {
		return test{word: word, op: isEqual, value: value}
	}
	return test{word: word, op: isMasked, value: value, mask: mask}
}

type verdict uint8

const (
	unknown verdict = iota
	yes
	no
)

func not(v verdict, t test) (verdict, test) {
	switch v {
	case yes:
		return no, t
	case no:
		return yes, t
	}
	return unknown, t
}

// known are the tests made on the way to a point of the program, the last one first.
type known struct {
	test test
	is   bool
	rest *known
}

// outcome is what is known of a test that may not have been made.
func (k *known) outcome(t test) verdict {
	if t.op == isMasked && t.mask == 0 {
		return yes
	}
	lowest, highest := uint32(0), ^uint32(0)
	for ; k != nil; k = k.rest {
		f := k.test
		switch {
		case f.word != t.word:
		case f == t:
			return verdictOf(k.is)
		case f.op == isEqual && k.is:
			lowest, highest = f.value, f.value
		case f.op == isGreater && k.is:
			lowest = max(lowest, f.value+1) // no overflow: nothing is greater than the greatest
		case f.op == isGreater:
			highest = min(highest, f.value)
		case f.op == isMasked && t.op == isMasked && f.mask == t.mask && k.is:
			return no // another value under the same mask
		}
	}
	return t.within(lowest, highest)
}

// within is the outcome of a test of a word that is in a range.
func (t test) within(lowest, highest uint32) verdict {
	switch t.op {
	case isEqual:
		if t.value < lowest || t.value > highest {
			return no
		}
		if lowest == highest {
			return yes
		}
	case isGreater:
		if lowest > t.value {
			return yes
		}
		if highest <= t.value {
			return no
		}
	case isMasked:
		if lowest == highest {
			return verdictOf(lowest&t.mask == t.value)
		}
	}
	return unknown
}

func verdictOf(is bool) verdict {
	if is {
		return yes
	}
	return no
}

package job

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
)

// span is the indexes from first to last, both included.
type span struct{ first, last int }

// intervals is a set of indexes: spans in order, with gaps between them. It is never changed in
// place.
type intervals []span

// spans returns the set of all indexes in these spans, in any order.
func spans(of ...span) intervals {
	of = slices.Clone(of)
	slices.SortFunc(of, func(a, b span) int { return cmp.Compare(a.first, b.first) })
	var set intervals
	for _, s := range of {
		if n := len(set); n > 0 && s.first <= set[n-1].last+1 {
			set[n-1].last = max(set[n-1].last, s.last)
		} else {
			set = append(set, s)
		}
	}
	return set
}

// parseIndexes reads what String writes, as far as it is below limit. Parts that are no numbers are
// passed over: a damaged status must not stop a Job for good.
func parseIndexes(text string, limit int) intervals {
	var of []span
	for part := range strings.SplitSeq(text, ",") {
		from, to, isSpan := strings.Cut(part, "-")
		first, err := strconv.Atoi(from)
		last := first
		if err == nil && isSpan {
			last, err = strconv.Atoi(to)
		}
		if err == nil && first < limit {
			of = append(of, span{first, min(last, limit-1)})
		}
	}
	return spans(of...)
}

// String is the form that a Job's status has: "1,3-5,7,8".
func (s intervals) String() string {
	var b strings.Builder
	for i, in := range s {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(in.first))
		switch in.last - in.first {
		case 0:
			continue
		case 1:
			b.WriteByte(',')
		default:
			b.WriteByte('-')
		}
		b.WriteString(strconv.Itoa(in.last))
	}
	return b.String()
}

// with returns the union.
func (s intervals) with(other intervals) intervals { return spans(slices.Concat(s, other)...) }

// withEach returns the union with single indexes.
func (s intervals) withEach(indexes ...int) intervals {
	of := slices.Clone(s)
	for _, i := range indexes {
		of = append(of, span{i, i})
	}
	return spans(of...)
}

func (s intervals) total() int {
	n := 0
	for _, in := range s {
		n += in.last - in.first + 1
	}
	return n
}

// common is how many indexes are in both sets.
func (s intervals) common(other intervals) int {
	return s.total() + other.total() - s.with(other).total()
}

func (s intervals) has(index int) bool {
	_, found := slices.BinarySearchFunc(s, index, func(in span, index int) int {
		switch {
		case in.last < index:
			return -1
		case in.first > index:
			return 1
		}
		return 0
	})
	return found
}

// firstMissing returns the n lowest indexes below limit that are not in the set.
func (s intervals) firstMissing(n, limit int) []int {
	var missing []int
	next := 0
	for _, in := range append(slices.Clone(s), span{limit, limit}) {
		for ; next < in.first && next < limit && len(missing) < n; next++ {
			missing = append(missing, next)
		}
		next = max(next, in.last+1)
	}
	return missing
}

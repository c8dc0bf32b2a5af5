package job

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

func TestIndexesText(t *testing.T) {
	for _, c := range []struct {
		in    string
		limit int
		out   string
		total int
	}{
		{"", 10, "", 0},
		{"0", 10, "0", 1},
		{"0,1", 10, "0,1", 2},
		{"0-1", 10, "0,1", 2},
		{"1,3-5,7,8", 10, "1,3-5,7,8", 6},
		{"1,2,3,5", 10, "1-3,5", 4},
		{"3-7", 5, "3,4", 2},
		{"3-7,9", 9, "3-7", 5},
		{"5", 5, "", 0},
		{"0-2,x,4,5-y", 10, "0-2,4", 4},
		{"4,0-1", 10, "0,1,4", 3},
		{"0-3,2-6", 10, "0-6", 7},
	} {
		got := parseIndexes(c.in, c.limit)
		if got.String() != c.out || got.total() != c.total {
			t.Errorf("%q below %d = %q with %d, want %q with %d", c.in, c.limit, got, got.total(), c.out, c.total)
		}
	}
}

// TestIndexesAsSets compares every operation with plain maps.
func TestIndexesAsSets(t *testing.T) {
	const limit = 40
	random := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		pick := func() (map[int]bool, intervals) {
			m, s := map[int]bool{}, intervals(nil)
			for range random.IntN(limit) {
				i := random.IntN(limit)
				m[i], s = true, s.withEach(i)
			}
			return m, s
		}
		m1, s1 := pick()
		m2, s2 := pick()
		union, common, missing := 0, 0, []int(nil)
		for i := range limit {
			if m1[i] || m2[i] {
				union++
			}
			if m1[i] && m2[i] {
				common++
			}
			if s1.has(i) != m1[i] {
				t.Fatalf("%s.has(%d) = %v", s1, i, s1.has(i))
			}
			if !m1[i] {
				missing = append(missing, i)
			}
		}
		if s1.with(s2).total() != union || s1.common(s2) != common || s1.total() != len(m1) {
			t.Fatalf("%s and %s: union %d, common %d, total %d", s1, s2, s1.with(s2).total(), s1.common(s2), s1.total())
		}
		for _, n := range []int{0, 1, 5, limit} {
			want := missing[:min(n, len(missing))]
			if got := s1.firstMissing(n, limit); !slices.Equal(got, want) {
				t.Fatalf("%s.firstMissing(%d) = %v, want %v", s1, n, got, want)
			}
		}
		if again := parseIndexes(s1.String(), limit); fmt.Sprint(again) != fmt.Sprint(s1) {
			t.Fatalf("%s parsed as %s", s1, again)
		}
	}
}

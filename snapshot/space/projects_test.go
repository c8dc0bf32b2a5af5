package space

import "testing"

func TestProjectsAreNotGivenTwice(t *testing.T) {
	seen := map[uint32]bool{}
	for n := range 2 { // two stores
		projects := Projects{Range: n}
		first := uint32(firstProject + n*projectRange)
		for range 300 {
			p := projects.Next(seen)
			if p < first || p >= first+projectRange || seen[p] {
				t.Fatalf("project %d", p)
			}
			seen[p] = true
		}
		projects.last = first + projectRange - 1
		if p := projects.Next(seen); seen[p] || p < first || p >= first+projectRange {
			t.Errorf("after the last comes %d", p)
		}
	}
}

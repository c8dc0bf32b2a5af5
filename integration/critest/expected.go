package main

import (
	_ "embed"
	"fmt"
	"slices"
	"strings"
)

//go:embed expected.txt
var expectedText string

// expectation is which tests there are, whatever became of them.
type expectation struct {
	tests   int
	skipped []string
}

// expected is what the whole suite does on a machine.
func expected(text string, m machine) (e expectation, err error) {
	for line := range strings.Lines(text) {
		kind, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch kind {
		case "", "#":
		case "tests":
			if _, err := fmt.Sscan(rest, &e.tests); err != nil {
				return e, fmt.Errorf("expected.txt: %q: %w", line, err)
			}
		case "apparmor":
			if !m.armor {
				e.skipped = append(e.skipped, rest)
			}
		default:
			return e, fmt.Errorf("expected.txt: unknown %q", kind)
		}
	}
	return e, nil
}

// differences are what a run lacks and what it has more: a suite that ends early, a test that is
// skipped for a reason of this machine, and one that is skipped no longer.
func (e expectation) differences(results []result) (wrong []string) {
	if len(results) != e.tests {
		wrong = append(wrong, fmt.Sprintf("%d tests have run or say why not, want %d: if critest has changed, change expected.txt", len(results),
			e.tests))
	}
	want := slices.Clone(e.skipped)
	for _, r := range results {
		if r.outcome != skipped {
			continue
		}
		if i := slices.Index(want, r.name); i >= 0 {
			want = slices.Delete(want, i, i+1)
		} else {
			wrong = append(wrong, fmt.Sprintf("SKIPPED %s\n\t%s", r.name, r.why))
		}
	}
	for _, name := range want {
		wrong = append(wrong, fmt.Sprintf("NOT SKIPPED %s\n\texpected.txt says that it is, for lack of AppArmor", name))
	}
	return wrong
}

package main

import (
	"errors"
	"strings"
	"testing"
)

func TestDifferences(t *testing.T) {
	const text = "# why\n\ntests 3\napparmor a test\n"
	pass := func(name string) result { return result{name, passed, ""} }
	skip := func(name string) result { return result{name, skipped, "not here"} }
	for name, c := range map[string]struct {
		armor   bool
		results []result
		want    string // none if empty
	}{
		"as expected":                {results: []result{skip("a test"), pass("b"), pass("c")}},
		"as expected with AppArmor":  {armor: true, results: []result{pass("a test"), pass("b"), pass("c")}},
		"ended early":                {results: []result{skip("a test"), pass("b")}, want: "2 tests"},
		"one too many":               {results: []result{skip("a test"), pass("b"), pass("c"), pass("d")}, want: "4 tests"},
		"another is skipped":         {results: []result{skip("a test"), skip("b"), pass("c")}, want: "SKIPPED b"},
		"skipped with AppArmor":      {armor: true, results: []result{skip("a test"), pass("b"), pass("c")}, want: "SKIPPED a test"},
		"no longer skipped":          {results: []result{pass("a test"), pass("b"), pass("c")}, want: "NOT SKIPPED a test"},
		"a failed one counts as run": {results: []result{skip("a test"), pass("b"), {"c", failed, ""}}},
	} {
		t.Run(name, func(t *testing.T) {
			e, err := expected(text, machine{armor: c.armor})
			if err != nil {
				t.Fatal(err)
			}
			got := strings.Join(e.differences(c.results), "\n")
			if c.want == "" && got != "" || !strings.Contains(got, c.want) {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func TestReportAndExitStatusAgree(t *testing.T) {
	good, bad := []result{{"a", passed, ""}}, []result{{"a", passed, ""}, {"b", failed, ""}}
	died := errors.New("exit status 1")
	if ended(nil, good) != nil || ended(died, bad) != nil {
		t.Error("a run that agrees is refused")
	}
	if ended(died, good) == nil || ended(nil, bad) == nil {
		t.Error("a run that died, or lost a failure, is accepted")
	}
}

func TestExpectedTextIsRead(t *testing.T) {
	e, err := expected(expectedText, machine{})
	if err != nil || e.tests < 100 || len(e.skipped) == 0 {
		t.Errorf("%+v, %v", e, err)
	}
	for _, bad := range []string{"tests many", "unknown x"} {
		if _, err := expected(bad, machine{}); err == nil {
			t.Errorf("%q: no error", bad)
		}
	}
}

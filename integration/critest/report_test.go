package main

import (
	"strings"
	"testing"
)

const report = `<?xml version="1.0"?>
<testsuites><testsuite>
<testcase name="[BeforeSuite]" status="passed"/>
<testcase name="[It] [k8s.io] good" status="passed"/>
<testcase name="[It] [k8s.io] bad" status="failed"><failure message="broken&#xA;more"/></testcase>
<testcase name="[It] [k8s.io] odd" status="skipped"><skipped message="skipped - no AppArmor"/></testcase>
<testcase name="[It] [k8s.io] left out" status="skipped"><skipped message="skipped"/></testcase>
<testcase name="[It] [k8s.io] panics" status="panicked"><error message="oh"/></testcase>
</testsuite></testsuites>`

func TestParseReport(t *testing.T) {
	r, err := parseReport([]byte(report))
	if err != nil {
		t.Fatal(err)
	}
	if got := summarize(r); got != (summary{passed: 1, failed: 2, skipped: 1}) {
		t.Errorf("summary %+v of %+v", got, r)
	}
	for _, bad := range []string{"", "{", "<testsuites/>"} {
		if _, err := parseReport([]byte(bad)); err == nil {
			t.Errorf("parseReport(%q): no error", bad)
		}
	}
}

func TestCompare(t *testing.T) {
	r, err := parseReport([]byte(report))
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name     string
		known    []string
		complete bool
		want     []string // one part of each line
	}{
		{"as known", []string{"[k8s.io] bad", "[k8s.io] panics"}, true, nil},
		{"new failure", []string{"[k8s.io] panics"}, true, []string{"FAILED [k8s.io] bad"}},
		{"passes again", []string{"[k8s.io] bad", "[k8s.io] panics", "[k8s.io] good"}, true, []string{"take it off"}},
		{"unknown name", []string{"[k8s.io] bad", "[k8s.io] panics", "[k8s.io] typo"}, true, []string{"no such test"}},
		{"unknown name, part of the suite", []string{"[k8s.io] bad", "[k8s.io] panics", "[k8s.io] typo"}, false, nil},
	} {
		got := compare(r, tc.known, tc.complete)
		if len(got) != len(tc.want) {
			t.Errorf("%s: %q, want %q", tc.name, got, tc.want)
			continue
		}
		for i := range got {
			if !strings.Contains(got[i], tc.want[i]) {
				t.Errorf("%s: %q, want %q", tc.name, got, tc.want)
			}
		}
	}
}

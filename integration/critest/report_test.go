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

func TestFailures(t *testing.T) {
	r, err := parseReport([]byte(report))
	if err != nil {
		t.Fatal(err)
	}
	got := failures(r)
	if len(got) != 2 || !strings.Contains(got[0], "bad") || !strings.Contains(got[0], "broken") || !strings.Contains(got[1], "panics") {
		t.Errorf("%q", got)
	}
}

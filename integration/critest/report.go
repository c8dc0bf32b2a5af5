package main

import (
	"encoding/xml"
	"fmt"
	"os"
	"slices"
	"strings"
)

// outcome is how one test went.
type outcome string

const (
	passed  outcome = "passed"
	failed  outcome = "failed"
	skipped outcome = "skipped"
)

// result is one test of the report.
type result struct {
	name    string
	outcome outcome
	why     string // first line of the failure, or of the reason for skipping
}

// readReport parses ginkgo's JUnit report.
func readReport(path string) ([]result, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return parseReport(raw)
}

func parseReport(raw []byte) ([]result, error) {
	var doc struct {
		Suites []struct {
			Cases []struct {
				Name    string `xml:"name,attr"`
				Status  string `xml:"status,attr"`
				Failure *struct {
					Message string `xml:"message,attr"`
				} `xml:"failure"`
				Error *struct {
					Message string `xml:"message,attr"`
				} `xml:"error"`
				Skipped *struct {
					Message string `xml:"message,attr"`
				} `xml:"skipped"`
			} `xml:"testcase"`
		} `xml:"testsuite"`
	}
	if err := xml.Unmarshal(raw, &doc); err != nil {
		return nil, err
	}
	var all []result
	for _, s := range doc.Suites {
		for _, c := range s.Cases {
			// "[It] [k8s.io] Container … [Conformance]"; set-up nodes have no [It].
			name, isTest := strings.CutPrefix(c.Name, "[It] ")
			r := result{name: strings.TrimSpace(name), outcome: passed}
			switch {
			case c.Failure != nil:
				r.outcome, r.why = failed, firstLine(c.Failure.Message)
			case c.Error != nil:
				r.outcome, r.why = failed, firstLine(c.Error.Message)
			case c.Skipped != nil:
				r.outcome, r.why = skipped, strings.TrimPrefix(firstLine(c.Skipped.Message), "skipped - ")
			case !isTest:
				continue
			}
			// What -focus and the benchmarks leave out is not part of the suite.
			if r.outcome == skipped && (r.why == "" || r.why == "skipped") {
				continue
			}
			all = append(all, r)
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("report without tests")
	}
	slices.SortFunc(all, func(a, b result) int { return strings.Compare(a.name, b.name) })
	return all, nil
}

func firstLine(s string) string {
	s, _, _ = strings.Cut(strings.TrimSpace(s), "\n")
	return s
}

type summary struct{ passed, failed, skipped int }

func summarize(results []result) (s summary) {
	for _, r := range results {
		switch r.outcome {
		case passed:
			s.passed++
		case failed:
			s.failed++
		case skipped:
			s.skipped++
		}
	}
	return s
}

// failures are what has to be fixed.
func failures(results []result) (wrong []string) {
	for _, r := range results {
		if r.outcome == failed {
			wrong = append(wrong, fmt.Sprintf("FAILED %s\n\t%s", r.name, r.why))
		}
	}
	return wrong
}

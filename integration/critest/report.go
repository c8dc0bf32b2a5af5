package main

import (
	"bufio"
	"encoding/xml"
	"fmt"
	"os"
	"os/exec"
	"runtime"
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

// readKnown reads a list of names, one a line; # begins a comment.
func readKnown(path string) ([]string, error) {
	if path == "" {
		return nil, nil
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var names []string
	s := bufio.NewScanner(f)
	for s.Scan() {
		line := strings.TrimSpace(s.Text())
		if line != "" && !strings.HasPrefix(line, "#") {
			names = append(names, line)
		}
	}
	return names, s.Err()
}

// judge compares the results with the known failures.
func judge(results []result, o options) []string {
	known, err := readKnown(o.known)
	if err != nil {
		return []string{err.Error()}
	}
	return compare(results, known, o.focus == "" && o.skip == "")
}

// compare returns what has to be mended. Only a complete run can tell that a listed
// test does not exist.
func compare(results []result, known []string, complete bool) []string {
	var wrong []string
	seen := map[string]bool{}
	for _, r := range results {
		seen[r.name] = true
		listed := slices.Contains(known, r.name)
		switch {
		case r.outcome == failed && !listed:
			wrong = append(wrong, fmt.Sprintf("FAILED %s\n\t%s", r.name, r.why))
		case r.outcome == passed && listed:
			wrong = append(wrong, fmt.Sprintf("PASSES, take it off the list: %s", r.name))
		}
	}
	for _, name := range known {
		if complete && !seen[name] {
			wrong = append(wrong, fmt.Sprintf("on the list, but no such test: %s", name))
		}
	}
	return wrong
}

// page is docs/cri-conformance.md.
func page(results []result, s summary) string {
	var b strings.Builder
	kernel, _ := exec.Command("uname", "-r").Output()
	fmt.Fprintf(&b, `# CRI conformance

What the Kubernetes CRI validation suite (critest %s, unmodified but for the digest
of one image) says of Coracle. Written by `+"`make critest CRITEST_FLAGS=-md=docs/cri-conformance.md`"+`;
`+"`make test`"+` runs the same suite and compares it with
[known-failing.txt](../integration/critest/known-failing.txt).

| passed | failed | skipped |
| ---: | ---: | ---: |
| %d | %d | %d |

Machine: Linux %s, %s.
`, critestVersion(), s.passed, s.failed, s.skipped, strings.TrimSpace(string(kernel)), runtime.GOARCH)
	for _, part := range []struct {
		title string
		which outcome
	}{{"Failed", failed}, {"Skipped", skipped}} {
		fmt.Fprintf(&b, "\n## %s\n\n", part.title)
		none := true
		for _, r := range results {
			if r.outcome == part.which {
				none = false
				fmt.Fprintf(&b, "- %s: %s\n", r.name, r.why)
			}
		}
		if none {
			b.WriteString("None.\n")
		}
	}
	return b.String()
}

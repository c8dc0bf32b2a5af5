package main

import (
	"bytes"
	"fmt"
	"os"
	"regexp"
	"strings"
)

// result is what a program said about a runtime.
type result struct {
	passed int
	failed []string // descriptions of assertions
	code   int      // the program's own exit status
	output []byte
}

var notOK = regexp.MustCompile(`^not ok(?: \d+)?(?: - )?(.*)$`)

// parse reads TAP. A program that ends with an error has not said all.
func parse(output []byte, code int) result {
	r := result{code: code, output: output}
	for line := range bytes.Lines(output) {
		line = bytes.TrimRight(line, "\n")
		if m := notOK.FindSubmatch(line); m != nil {
			r.failed = append(r.failed, string(m[1]))
		} else if bytes.HasPrefix(line, []byte("ok ")) {
			r.passed++
		}
	}
	// Programs about hooks say nothing when all is well.
	if trouble := silentError.FindSubmatch(output); r.passed+len(r.failed) == 0 && trouble != nil {
		r.failed = append(r.failed, "an error without an assertion")
	}
	return r
}

var silentError = regexp.MustCompile(`(?m)^ +"error": *"(.+)"`)

// troubles is the output without what went well and without explanations of that.
func (r result) troubles() string {
	var b strings.Builder
	shown := true
	for line := range strings.Lines(string(r.output)) {
		switch {
		case strings.HasPrefix(line, "ok "):
			shown = false
		case strings.HasPrefix(line, "  "):
		default:
			shown = true
		}
		if shown {
			b.WriteString(line)
		}
	}
	return b.String()
}

func (r result) ok() bool { return r.code == 0 && len(r.failed) == 0 }

// String is short enough for a table.
func (r result) String() string {
	s := fmt.Sprintf("%d ok", r.passed)
	if len(r.failed) > 0 {
		s += fmt.Sprintf(", %d not", len(r.failed))
	}
	if r.code != 0 {
		s += fmt.Sprintf(", exit %d", r.code)
	}
	return s
}

// exception says that runc fails a program, too, and why.
type exception struct{ reference, why string }

// judge says what a program's two results mean: whether ours is as good as it can be.
func judge(ours, reference result, known *exception) (string, bool) {
	switch {
	case ours.ok() && known != nil && reference.ok():
		return "listed, passes here", true
	case ours.ok():
		return "", true
	case known == nil:
		return "FAILS, not listed", false
	case reference.ok():
		return "FAILS, listed, but runc passes", false
	case worse(ours, reference):
		return "FAILS more than runc", false
	}
	return known.why, true
}

// worse says whether ours fails an assertion that the reference does not fail. One that
// the reference did not come to, because it could not make the container, it has failed.
func worse(ours, reference result) bool {
	if reference.code != 0 && reference.passed+len(reference.failed) == 0 {
		return false
	}
	left := map[string]int{}
	for _, f := range reference.failed {
		if strings.HasPrefix(f, "exit status ") {
			f = ""
		}
		left[f]++
	}
	for _, f := range ours.failed {
		if left[f] > 0 {
			left[f]--
		} else if left[""]--; left[""] < 0 {
			return true
		}
	}
	return ours.code != 0 && reference.code == 0
}

// readExceptions reads lines "program | runc's result | why". What starts with # and
// empty lines count for nothing.
func readExceptions(path string) (map[string]*exception, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	out := map[string]*exception{}
	number := 0
	for line := range strings.Lines(string(data)) {
		number++
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		fields := strings.Split(line, "|")
		if len(fields) != 3 {
			return nil, fmt.Errorf("%s:%d: %d fields, write program | runc's result | why", path, number, len(fields))
		}
		name := strings.TrimSpace(fields[0])
		if out[name] != nil {
			return nil, fmt.Errorf("%s:%d: duplicate %s", path, number, name)
		}
		out[name] = &exception{reference: strings.TrimSpace(fields[1]), why: strings.TrimSpace(fields[2])}
	}
	return out, nil
}

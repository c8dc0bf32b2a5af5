package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"
)

// difference is one place where the sides differ.
type difference struct {
	path           string
	ours, upstream string
}

func (d difference) String() string { return d.path + ": " + d.ours + " / " + d.upstream }

const absent = "(absent)"

// compare returns the differences in the order of their paths.
func compare(ours, upstream map[string]any) []difference {
	var all []difference
	walk("", ours, upstream, func(d difference) { all = append(all, d) })
	return all
}

func walk(path string, ours, upstream any, found func(difference)) {
	switch a := ours.(type) {
	case map[string]any:
		b, ok := upstream.(map[string]any)
		if !ok {
			break
		}
		for _, key := range keysOf(a, b) {
			next := path + " " + key
			if path == "" {
				next = key
			}
			left, inA := a[key]
			right, inB := b[key]
			if inA && inB {
				walk(next, left, right, found)
				continue
			}
			found(difference{next, show(left, inA), show(right, inB)})
		}
		return
	case []any:
		b, ok := upstream.([]any)
		if !ok || len(a) != len(b) {
			break
		}
		for i := range a {
			walk(fmt.Sprintf("%s[%d]", path, i), a[i], b[i], found)
		}
		return
	case lines:
		b, ok := upstream.(lines)
		if !ok {
			break
		}
		for _, line := range keysOf(a, b) {
			if a[line] > b[line] {
				found(difference{path, line, absent})
			} else if a[line] < b[line] {
				found(difference{path, absent, line})
			}
		}
		return
	}
	if !reflect.DeepEqual(ours, upstream) {
		found(difference{path, show(ours, true), show(upstream, true)})
	}
}

func keysOf[V any](a, b map[string]V) []string {
	keys := slices.AppendSeq(slices.Collect(maps.Keys(a)), maps.Keys(b))
	slices.Sort(keys)
	return slices.Compact(keys)
}

func show(v any, there bool) string {
	const most = 300
	if !there {
		return absent
	}
	s := text(v)
	if len(s) > most {
		s = s[:most] + "..."
	}
	return s
}

// explanation is a known difference: a line of known.txt.
type explanation struct {
	line      int
	pattern   *regexp.Regexp
	sometimes bool // it depends on what comes first
}

type explanations []explanation

// readKnown reads known.txt: a regular expression that is looked for in the printed difference,
// two colons with a space on each side, and the reason. A tilde and a space before it mean that the
// difference does not occur each time. Lines that begin with # are for the reader.
func readKnown() (explanations, error) {
	f, err := files.Open("known.txt")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var all explanations
	scanner := bufio.NewScanner(f)
	for n := 1; scanner.Scan(); n++ {
		if line := scanner.Text(); line != "" && !strings.HasPrefix(line, "#") {
			pattern, reason, ok := strings.Cut(line, " :: ")
			if !ok || reason == "" {
				return nil, fmt.Errorf("known.txt:%d: no ` :: ` and reason", n)
			}
			pattern, sometimes := strings.CutPrefix(pattern, "~ ")
			expression, err := regexp.Compile(pattern)
			if err != nil {
				return nil, fmt.Errorf("known.txt:%d: %w", n, err)
			}
			all = append(all, explanation{n, expression, sometimes})
		}
	}
	return all, scanner.Err()
}

// sort returns the differences that nothing explains, and the explanations that explain nothing.
func (all explanations) sort(found []difference) (unknown []difference, stale explanations) {
	occurs := make([]bool, len(all))
	for _, d := range found {
		explained := false
		for i, e := range all {
			if e.pattern.MatchString(d.String()) {
				explained, occurs[i] = true, true
			}
		}
		if !explained {
			unknown = append(unknown, d)
		}
	}
	for i, e := range all {
		if !occurs[i] && !e.sometimes {
			stale = append(stale, e)
		}
	}
	return unknown, stale
}

// report prints unexplained differences, and fails if there are any.
func (all explanations) report(w io.Writer, found []difference) error {
	unknown, stale := all.sort(found)
	for _, d := range unknown {
		fmt.Fprintln(w, d)
	}
	for _, e := range stale {
		fmt.Fprintf(w, "known.txt:%d: no longer occurs: %s\n", e.line, e.pattern)
	}
	fmt.Fprintf(w, "%d differences, %d of them explained; %d explanations no longer occur\n", len(found), len(found)-len(unknown), len(stale))
	if len(unknown)+len(stale) > 0 {
		return errors.New("the sides differ in what is not known, or no longer in what is")
	}
	return nil
}

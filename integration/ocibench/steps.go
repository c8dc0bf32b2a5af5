//go:build cgo

package main

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// step is a line of --trace-steps.
type step struct {
	what   string // indented as it is printed
	median time.Duration
}

// steps are the medians of what coracle-oci --trace-steps tells of `run` of true, with the
// default seccomp profile.
func (w *workshop) steps(runs int) ([]step, error) {
	took := map[string][]time.Duration{}
	var order []string
	for i := range runs + warmUp {
		out, err := exec.Command(filepath.Join(w.bin, "coracle-oci"), "--root", "/run/ocibench-steps", "--trace-steps",
			"run", "--bundle", w.bundles[defaultSeccomp], "one").CombinedOutput()
		if err != nil {
			return nil, fmt.Errorf("coracle-oci --trace-steps: %w: %s", err, out)
		}
		if i < warmUp {
			continue
		}
		for line := range strings.Lines(string(out)) {
			key, d, ok := parseStep(line)
			if !ok {
				return nil, fmt.Errorf("coracle-oci --trace-steps: unexpected line %q", line)
			}
			if took[key] == nil {
				order = append(order, key)
			}
			took[key] = append(took[key], d)
		}
	}
	var list []step
	for _, key := range order {
		slices.Sort(took[key])
		list = append(list, step{what: key, median: took[key][len(took[key])/2]})
	}
	return list, nil
}

// parseStep takes a line apart: what, with the spaces before it, and how long.
func parseStep(line string) (what string, took time.Duration, ok bool) {
	line = strings.TrimRight(line, "\n")
	i := strings.LastIndex(line, "  ")
	if i < 0 {
		return "", 0, false
	}
	d, err := time.ParseDuration(strings.TrimSpace(line[i:]))
	return strings.TrimRight(line[:i], " "), d, err == nil
}

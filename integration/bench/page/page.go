// Package page writes docs/benchmarks.md, whose parts are measured at different times: tables,
// which are described as data, and the text of each part, a template.
package page

import (
	"errors"
	"io/fs"
	"os"
	"strings"
)

// Part is a part of the page: the heading that it starts with.
type Part string

// The parts, in order. The first starts with the page.
const (
	Runtimes  Part = "# Benchmarks"
	Container Part = "## One container"
	Clusters  Part = "## Whole clusters"
	Memory    Part = "## What is in memory" // written by hand
	Images    Part = "## Images"
	Services  Part = "## Services"             // by hand, from what cluster/bench/proxy prints
	Network   Part = "## The built-in network" // written by hand
)

var parts = []Part{Runtimes, Container, Clusters, Memory, Images, Services, Network}

// Write replaces a part of the page by text, which starts with the part's heading.
func Write(path string, part Part, text string) error {
	old, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.WriteFile(path, []byte(replace(string(old), part, text)), 0o644)
}

func replace(page string, part Part, text string) string {
	have := split(page)
	have[part] = text
	var out []string
	for _, p := range parts {
		if t := strings.TrimSpace(have[p]); t != "" {
			out = append(out, t)
		}
	}
	return strings.Join(out, "\n\n") + "\n"
}

// split cuts a page at the headings of its parts.
func split(page string) map[Part]string {
	have, now := map[Part]string{}, Runtimes
	for line := range strings.Lines(page) {
		for _, p := range parts {
			if strings.TrimRight(line, "\n") == string(p) {
				now = p
			}
		}
		have[now] += line
	}
	return have
}

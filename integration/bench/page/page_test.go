package page

import (
	"os"
	"slices"
	"strings"
	"testing"
)

func TestReplace(t *testing.T) {
	const runtimes, clusters = "# Benchmarks\n\na\n\n## What is measured\n\nb\n", "## Whole clusters\n\nc\n"
	for name, c := range map[string]struct {
		page string
		part Part
		text string
		want string
	}{
		"first":   {"", Container, "## One container\n\nx\n", "## One container\n\nx\n"},
		"between": {runtimes + "\n" + clusters, Container, "## One container\n\nx\n", runtimes + "\n## One container\n\nx\n\n" + clusters},
		"again": {
			runtimes + "\n## One container\n\nx\n\n" + clusters, Container, "## One container\n\ny\n",
			runtimes + "\n## One container\n\ny\n\n" + clusters,
		},
		"begin": {
			runtimes + "\n## One container\n\nx\n\n" + clusters, Runtimes, "# Benchmarks\n\nz\n",
			"# Benchmarks\n\nz\n\n## One container\n\nx\n\n" + clusters,
		},
		"at the end": {runtimes, Clusters, clusters, runtimes + "\n" + clusters},
	} {
		if got := replace(c.page, c.part, c.text); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// A heading that is no part would be taken for a piece of the part before it, and go with that.
func TestEverySectionIsAPart(t *testing.T) {
	b, err := os.ReadFile("../../../docs/benchmarks.md")
	if err != nil {
		t.Fatal(err)
	}
	var have []Part
	for line := range strings.Lines(string(b)) {
		line = strings.TrimRight(line, "\n")
		if strings.HasPrefix(line, "# ") || strings.HasPrefix(line, "## ") && line != "## What is measured" {
			have = append(have, Part(line))
		}
	}
	if !slices.Equal(have, parts) {
		t.Errorf("the page has %q, of which %q are known", have, parts)
	}
}

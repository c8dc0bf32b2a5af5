package page

import "testing"

func TestReplace(t *testing.T) {
	const runtimes, clusters = "# Benchmarks\n\na\n\n## What is measured\n\nb\n", "## Whole clusters\n\nc\n"
	for name, c := range map[string]struct {
		page string
		part Part
		text string
		want string
	}{
		"first":      {"", Container, "## One container\n\nx\n", "## One container\n\nx\n"},
		"between":    {runtimes + "\n" + clusters, Container, "## One container\n\nx\n", runtimes + "\n## One container\n\nx\n\n" + clusters},
		"again":      {runtimes + "\n## One container\n\nx\n\n" + clusters, Container, "## One container\n\ny\n", runtimes + "\n## One container\n\ny\n\n" + clusters},
		"begin":      {runtimes + "\n## One container\n\nx\n\n" + clusters, Runtimes, "# Benchmarks\n\nz\n", "# Benchmarks\n\nz\n\n## One container\n\nx\n\n" + clusters},
		"at the end": {runtimes, Clusters, clusters, runtimes + "\n" + clusters},
	} {
		if got := replace(c.page, c.part, c.text); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"strings"

	"github.com/coracle-project/coracle/internal/testkit"
)

// The page is an introduction and a part for each kind of machine, which starts with a heading of
// level two and is replaced by each run on such a machine.

// writePart writes a machine's part into the page at path, or to standard output for "-".
func writePart(path string, m machine, results []result) error {
	text := part(m, results)
	if path == "-" {
		_, err := fmt.Print(text)
		return err
	}
	return mergeInto(path, text)
}

// takePart writes into the page the part at the end of a file, which has a run's other output
// before it.
func takePart(path, file string) error {
	raw, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	_, parts := split(string(raw))
	if len(parts) != 1 {
		return fmt.Errorf("%s: has %d parts of the page, want 1", file, len(parts))
	}
	return mergeInto(path, parts[0])
}

func mergeInto(path, text string) error {
	old, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.WriteFile(path, []byte(merge(string(old), introduction(critestVersion()), text)), 0o644)
}

// merge replaces the page's introduction, and its part with the same heading; the others stay.
func merge(page, intro, text string) string {
	_, parts := split(page)
	at := slices.IndexFunc(parts, func(p string) bool { return heading(p) == heading(text) })
	if at < 0 {
		parts = append(parts, text)
	} else {
		parts[at] = text
	}
	for i := range parts {
		parts[i] = strings.TrimSpace(parts[i])
	}
	return strings.TrimSpace(intro) + "\n\n" + strings.Join(parts, "\n\n") + "\n"
}

// split cuts a page into what comes before the first part, and the parts.
func split(page string) (before string, parts []string) {
	for line := range strings.Lines(page) {
		switch {
		case strings.HasPrefix(line, "## "):
			parts = append(parts, line)
		case len(parts) == 0:
			before += line
		default:
			parts[len(parts)-1] += line
		}
	}
	return before, parts
}

func heading(part string) string {
	line, _, _ := strings.Cut(part, "\n")
	return strings.TrimSpace(line)
}

func introduction(version string) string {
	return fmt.Sprintf(`# CRI conformance

What the Kubernetes CRI validation suite (critest %s, unmodified but for the digest
of one image) says of Coracle, on two kinds of machines:

- the one where `+"`make test`"+` runs it, which fails if a test does;
  `+"`make critest CRITEST_FLAGS=-md=docs/cri-conformance.md`"+` writes its part
- a virtual machine with systemd, only the unified hierarchy of cgroups, and AppArmor;
  `+"`make test-vm VM_RUN=COMMAND VM_PARTS=critest VM_MD=docs/cri-conformance.md`"+` writes its part

and, on the first, of containerd, to compare with:
`+"`make bench-peers critest CRITEST_FLAGS='-peer -md=docs/cri-conformance.md'`"+` writes that part.
`, version)
}

func part(m machine, results []result) string {
	var b strings.Builder
	s := summarize(results)
	fmt.Fprintf(&b, `## %s

| passed | failed | skipped |
| ---: | ---: | ---: |
| %d | %d | %d |

Machine: Linux %s, %s.
Runtime: %s.
`, m, s.passed, s.failed, s.skipped, m.kernel, m.arch, m.runtime)
	for _, list := range []struct {
		title string
		which outcome
	}{{"Failed", failed}, {"Skipped", skipped}} {
		fmt.Fprintf(&b, "\n### %s\n\n", list.title)
		none := true
		for _, r := range results {
			if r.outcome == list.which {
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

// critestVersion asks the binary.
func critestVersion() string {
	exe, err := testkit.FindBin("tools", "critest")
	if err != nil {
		return "?"
	}
	out, _ := exec.Command(exe, "--version").Output()
	for line := range strings.Lines(string(out)) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(line), "critest version: "); ok {
			return v
		}
	}
	return "?"
}

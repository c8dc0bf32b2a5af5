package main

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"path"
	"slices"
	"strings"
)

// target is a line of targets.txt.
type target struct {
	name      string
	arguments []string // for make
	paths     []string // that it covers
	needs     string   // a variable of the environment without which it cannot run
	programs  bool     // it runs none of the packages' own tests and no tools of other targets, and does not cover them
	// tests are directories of packages whose own tests it runs nevertheless.
	tests []string
}

func parseTargets(text string) (targets []target, err error) {
	words := map[string][]string{}
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if name, paths, ok := strings.Cut(line, ": "); ok && !strings.Contains(line, "\t") {
			words[name] = strings.Fields(paths)
			continue
		}
		f := strings.Split(line, "\t")
		if len(f) < 3 {
			return nil, fmt.Errorf("targets.txt: %q is not name, arguments, paths", line)
		}
		t := target{name: f[0], arguments: strings.Fields(f[1])}
		for _, p := range strings.Fields(f[2]) {
			if paths, ok := words[p]; ok {
				t.paths = append(t.paths, paths...)
			} else {
				t.paths = append(t.paths, p)
			}
		}
		for _, option := range f[3:] {
			name, value, _ := strings.Cut(option, "=")
			switch {
			case name == "needs":
				t.needs = value
			case name == "tests":
				t.tests = strings.Fields(value)
			case option == "programs":
				t.programs = true
			default:
				return nil, fmt.Errorf("targets.txt: %s: unknown %q", t.name, option)
			}
		}
		if slices.ContainsFunc(targets, func(other target) bool { return other.name == t.name }) {
			return nil, fmt.Errorf("targets.txt: duplicate target %s", t.name)
		}
		targets = append(targets, t)
	}
	return targets, nil
}

// written are the pages that targets write and no test reads: they outdate no row.
var written = []string{
	page, "docs/conformance.md", "docs/crash-matrix.md", "docs/cri-conformance.md", "docs/csi-mock.md",
	"docs/network-policy-conformance.md",
}

// tools are directories of programs and tests that are run by the targets which name them, and by
// no other, and of what packages' own tests import.
var tools = []string{
	"cluster/bench", "cluster/controllers/internal/apitest",
	"cluster/integration/bgp", "cluster/integration/controlplanes", "cluster/integration/nodes", "cluster/oracle",
	"cmd/coracle", "hack/oci/compare", "image/build",
	"integration/bench", "integration/crashmatrix", "integration/kube", "integration/oci", "integration/ocibench",
}

// covers says whether a file below the paths counts. The tests of integration directories are what
// targets run.
func (t target) covers(file string) bool {
	another := func(tool string) bool { return strings.HasPrefix(file, tool+"/") && !slices.Contains(t.paths, tool) }
	if slices.Contains(written, file) || t.programs && slices.ContainsFunc(tools, another) {
		return false
	}
	// Inputs are what fuzz itself finds. The unit tests run them.
	if strings.Contains(file, "/testdata/fuzz/") {
		return !t.programs && slices.Contains(t.paths, ".")
	}
	unit := strings.HasSuffix(file, "_test.go")
	if !t.programs || !unit || slices.Contains(t.tests, path.Dir(file)) {
		return true
	}
	return path.Dir(file) != "integration" && slices.Contains(strings.Split(file, "/"), "integration")
}

// cleanTree is tree, and an error if files that the target covers differ from this commit.
// Untracked files differ, too: Go compiles them.
func (t target) cleanTree() (string, error) {
	lines, err := git(append([]string{"status", "--porcelain", "-z", "--no-renames", "--untracked-files=all", "--"}, t.paths...)...)
	if err != nil {
		return "", err
	}
	var changes []string
	for line := range strings.SplitSeq(lines, "\x00") {
		// Two letters and a space come before the path.
		if len(line) > 3 && t.covers(line[3:]) {
			changes = append(changes, line)
		}
	}
	if len(changes) > 0 {
		return "", fmt.Errorf("commit first, there are changes:\n%s", strings.Join(changes, "\n"))
	}
	return t.tree()
}

// tree is a hash of the covered files in this commit. A path that is not there is an error, or a
// renamed directory would no longer be covered.
func (t target) tree() (string, error) {
	for _, p := range slices.Concat(t.paths, t.tests) {
		if p == "." {
			continue
		}
		if _, err := git("rev-parse", "--verify", "--quiet", "HEAD:"+p); err != nil {
			return "", fmt.Errorf("targets.txt: %s: %s is not in this commit", t.name, p)
		}
	}
	files, err := git(append([]string{"ls-tree", "-r", "HEAD", "--"}, t.paths...)...)
	if err != nil {
		return "", err
	}
	sum := sha256.New()
	for line := range strings.Lines(files) {
		line = strings.TrimRight(line, "\n")
		if _, path, _ := strings.Cut(line, "\t"); t.covers(path) {
			fmt.Fprintln(sum, line)
		}
	}
	return hex.EncodeToString(sum.Sum(nil))[:12], nil
}

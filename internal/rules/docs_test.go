package rules

import (
	"bytes"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// mostArchitecture is how many lines ARCHITECTURE.md may have: a new reader has to finish it.
const mostArchitecture = 250

// unexplained are directories that ARCHITECTURE.md need not name, with the reason.
var unexplained = map[string]string{
	"cluster/cmd":         "the programs are in the table of binaries",
	"cluster/internal":    "small packages of cluster/ only",
	"internal/rules":      "tests of the repository",
	"network/networktest": "a test suite",
}

// wordsOf are the words of a page that it shows as code.
func wordsOf(page []byte) map[string]bool {
	all := map[string]bool{}
	word := regexp.MustCompile(`[\w-]+`)
	for line := range strings.Lines(string(page)) {
		for i, span := range strings.Split(line, "`") {
			if i%2 == 0 && !strings.HasPrefix(line, "    ") { // diagrams are code, too
				continue
			}
			for _, w := range word.FindAllString(span, -1) {
				all[w] = true
			}
		}
	}
	return all
}

// ARCHITECTURE.md names each package that is two directories deep, or the one above it says so.
func TestArchitectureNamesAllPackages(t *testing.T) {
	root := filepath.Join("..", "..")
	page, err := os.ReadFile(filepath.Join(root, "ARCHITECTURE.md"))
	if err != nil {
		t.Fatal(err)
	}
	if n := bytes.Count(page, []byte("\n")); n > mostArchitecture {
		t.Errorf("ARCHITECTURE.md has %d lines, and %d are allowed", n, mostArchitecture)
	}
	trees := []string{"cluster", "cri", "image", "internal", "network", "pod", "runtime", "shim", "snapshot"}
	dirs := map[string]bool{}
	forGoFiles(t, func(path string, _ []byte) {
		rel, err := filepath.Rel(root, path)
		if err != nil {
			t.Fatal(err)
		}
		parts := strings.Split(rel, "/")
		if len(parts) > 2 && slices.Contains(trees, parts[0]) && !strings.HasSuffix(rel, "_test.go") && !slices.Contains(parts, "testdata") {
			dirs[parts[0]+"/"+parts[1]] = true
		}
	})
	if len(dirs) < 50 {
		t.Errorf("only %d directories were found", len(dirs))
	}
	words := wordsOf(page)
	for _, dir := range slices.Sorted(maps.Keys(dirs)) {
		if !words[filepath.Base(dir)] && unexplained[dir] == "" {
			t.Errorf("ARCHITECTURE.md does not name %s", dir)
		}
	}
	for dir := range unexplained {
		if !dirs[dir] {
			t.Errorf("%s does not exist", dir)
		}
	}
}

// README.md is the index of docs/.
func TestReadmeListsAllPages(t *testing.T) {
	root := filepath.Join("..", "..")
	index, err := os.ReadFile(filepath.Join(root, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	pages, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil || len(pages) < 10 {
		t.Fatalf("%d pages, %v", len(pages), err)
	}
	for _, page := range pages {
		if name := "docs/" + filepath.Base(page); !bytes.Contains(index, []byte("]("+name+")")) {
			t.Errorf("README.md does not list %s", name)
		}
	}
}

package rules

import (
	"bytes"
	"go/scanner"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// The longest lines there may be, in characters.
const (
	maxCode    = 140
	maxComment = 100
	// longString is the length from which a string may make its line longer than that.
	longString = 40
)

// Lines of code are at most maxCode long, and those of comments maxComment. Longer may be what
// cannot be broken: a line with a long string or a field's tag, and a table in a comment.
func TestLinesAreShort(t *testing.T) {
	files := 0
	forGoFiles(t, func(path string, text []byte) {
		files++
		for _, line := range longLines(text) {
			t.Errorf("%s:%d is too long", path, line)
		}
	})
	if files < 1000 {
		t.Errorf("only %d files were read", files)
	}
}

// forGoFiles calls do for the Go files of all modules that are written by hand.
func forGoFiles(t *testing.T, do func(path string, text []byte)) {
	t.Helper()
	root := filepath.Join("..", "..")
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case e.IsDir() && path != root && (strings.HasPrefix(e.Name(), ".") || e.Name() == "bin" || e.Name() == "out"):
			return filepath.SkipDir
		case e.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, ".pb.go"):
			return nil
		}
		text, err := os.ReadFile(path)
		if err == nil && !bytes.Contains(text[:min(len(text), 500)], []byte("DO NOT EDIT")) {
			do(path, text)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// longLines returns the numbers of the lines that are longer than they may be.
func longLines(text []byte) (numbers []int) {
	lines := strings.Split(string(text), "\n")
	free := map[int]bool{} // lines with something that cannot be broken
	files := token.NewFileSet()
	file := files.AddFile("", files.Base(), len(text))
	var s scanner.Scanner
	s.Init(file, text, nil, scanner.ScanComments)
	for {
		pos, tok, literal := s.Scan()
		if tok == token.EOF {
			break
		}
		first := file.Line(pos)
		switch {
		case tok == token.STRING && (len(literal) >= longString || literal[0] == '`'):
			for n := first; n <= first+strings.Count(literal, "\n"); n++ {
				free[n] = true
			}
		case tok == token.COMMENT && (!strings.HasPrefix(literal, "// ") || strings.HasPrefix(literal, "//  ") ||
			strings.Contains(literal, "http")):
			free[first] = true // a directive, a list, a table or an address
		}
	}
	for i, line := range lines {
		longest := maxCode
		if strings.HasPrefix(strings.TrimLeft(line, "\t"), "//") {
			longest = maxComment
		}
		if utf8.RuneCountInString(line) > longest && !free[i+1] {
			numbers = append(numbers, i+1)
		}
	}
	return numbers
}

func TestLongLinesAreFound(t *testing.T) {
	long := strings.Repeat("x", maxCode)
	text := strings.Join([]string{
		"package p",
		"var " + long + " = 1", // 2
		`var a = "` + long + `"`,
		"// " + long, // 4
		"//\ta table " + long,
		"var b = `",
		long + long + "`",
		"type c struct { d int `json:\"" + long + "\"` }",
		`var e, ` + long + ` = "short", 1`, // 9
	}, "\n")
	got := longLines([]byte(text))
	if len(got) != 3 || got[0] != 2 || got[1] != 4 || got[2] != 9 {
		t.Errorf("got %v, want 2, 4 and 9", got)
	}
}

// measuredPages are written by programs that test or measure: lists of tests, and of machines.
var measuredPages = map[string]bool{
	"benchmarks.md": true, "conformance.md": true, "cri-conformance.md": true, "csi-mock.md": true,
	"network-policy-conformance.md": true,
}

// Prose of the pages has lines of at most maxCode, so that changes of it can be read.
func TestLinesOfPagesAreShort(t *testing.T) {
	root := filepath.Join("..", "..")
	var pages []string
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/decisions/*.md"} {
		found, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil || len(found) == 0 {
			t.Fatalf("%s: %d pages found, error %v", pattern, len(found), err)
		}
		pages = append(pages, found...)
	}
	for _, page := range pages {
		if measuredPages[filepath.Base(page)] {
			continue
		}
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range longProse(string(text)) {
			t.Errorf("%s:%d is longer than %d characters", page, line, maxCode)
		}
	}
}

// longProse returns the numbers of lines that are too long, without those of tables and of code.
func longProse(text string) (long []int) {
	code := false
	n := 0
	for line := range strings.Lines(text) {
		n++
		if strings.HasPrefix(line, "```") {
			code = !code
		}
		if code || strings.HasPrefix(line, "|") || strings.HasPrefix(line, "    ") {
			continue
		}
		if utf8.RuneCountInString(strings.TrimRight(line, "\n")) > maxCode {
			long = append(long, n)
		}
	}
	return long
}

func TestLongProseIsFound(t *testing.T) {
	wide := strings.Repeat("x", maxCode+1)
	text := "short\n" + wide + "\n| " + wide + "\n    " + wide + "\n```\n" + wide + "\n```\n" + wide[1:] + "\n- " + wide + "\n"
	if got := longProse(text); !slices.Equal(got, []int{2, 9}) {
		t.Errorf("long lines are %v, and should be 2 and 9", got)
	}
}

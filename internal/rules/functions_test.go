package rules

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// The longest and most complex functions there may be, outside of tests.
const (
	maxLines = 80
	// maxComplexity is McCabe's number: one more than there are branches.
	maxComplexity = 20
)

// whole are the functions that are clearer whole than in parts, with the reason.
var whole = map[string]string{
	"cluster/kubelet/e2e/guest/main.go run":        "one case for each command of a test program",
	"image/manifest/platform.go microLevel":        "one expression for each level, as its specification lists features",
	"runtime/plan/build.go namespaces":             "the order is the subject: each step depends on those before",
	"runtime/runtimetest/badconfigs.go BadConfigs": "a table",
	"runtime/validate/resources.go checkCPU":       "one check for each field",
}

// Functions have at most maxLines lines and a complexity of at most maxComplexity.
func TestFunctionsAreSmall(t *testing.T) {
	root := filepath.Join("..", "..")
	unused := maps.Clone(whole)
	files := 0
	forGoFiles(t, func(path string, text []byte) {
		if strings.HasSuffix(path, "_test.go") {
			return
		}
		files++
		rel, err := filepath.Rel(root, path)
		if err != nil {
			t.Fatal(err)
		}
		found, err := largeFunctions(text)
		if err != nil {
			t.Fatalf("%s: %v", rel, err)
		}
		for name, problem := range found {
			key := rel + " " + name
			if _, ok := whole[key]; !ok {
				t.Errorf("%s %s", key, problem)
			}
			delete(unused, key)
		}
	})
	if files < 700 {
		t.Errorf("only %d files were read", files)
	}
	for _, key := range slices.Sorted(maps.Keys(unused)) {
		t.Errorf("%s is small, or gone: remove it from the list", key)
	}
}

// largeFunctions returns the functions of a file that are too long or too complex, and what they
// are.
func largeFunctions(text []byte) (map[string]string, error) {
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, "", text, 0)
	if err != nil {
		return nil, err
	}
	found := map[string]string{}
	for _, d := range file.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok {
			continue
		}
		lines := set.Position(f.End()).Line - set.Position(f.Pos()).Line + 1
		if c := complexity(f); lines > maxLines || c > maxComplexity {
			found[f.Name.Name] = fmt.Sprintf("has %d lines (%d allowed) and a complexity of %d (%d allowed)", lines, maxLines, c, maxComplexity)
		}
	}
	return found, nil
}

// complexity counts branches as gocyclo does, those of function literals included.
func complexity(f *ast.FuncDecl) int {
	n := 1
	ast.Inspect(f, func(node ast.Node) bool {
		switch node := node.(type) {
		case *ast.IfStmt, *ast.ForStmt, *ast.RangeStmt:
			n++
		case *ast.CaseClause:
			if node.List != nil {
				n++
			}
		case *ast.CommClause:
			if node.Comm != nil {
				n++
			}
		case *ast.BinaryExpr:
			if node.Op == token.LAND || node.Op == token.LOR {
				n++
			}
		}
		return true
	})
	return n
}

func TestLargeFunctionsAreFound(t *testing.T) {
	text := "package p\n\nfunc long() {\n" + strings.Repeat("\n", maxLines-1) + "}\n" +
		"func allowed() {\n" + strings.Repeat("\n", maxLines-2) + "}\n" +
		"func complex() {\n" + strings.Repeat("if a && b || c {}\n", 5) + "switch { case a: case b: case c: case d: case e: default: }\n}\n" +
		"func simple() {\n" + strings.Repeat("if a && b || c {}\n", 5) + "switch { case a: case b: case c: case d: default: }\n}\n"
	found, err := largeFunctions([]byte(text))
	if got := slices.Sorted(maps.Keys(found)); err != nil || !slices.Equal(got, []string{"complex", "long"}) {
		t.Errorf("got %v, %v; want complex and long", found, err)
	}
}

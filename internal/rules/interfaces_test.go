package rules

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"testing"
)

// maxMethods is how many methods an interface may have. Those of interfaces that it embeds do not
// count: consumers of a part can ask for that part.
const maxMethods = 10

func TestInterfacesAreSmall(t *testing.T) {
	interfaces := 0
	forGoFiles(t, func(path string, text []byte) {
		found, large, err := largeInterfaces(text)
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		interfaces += found
		for _, problem := range large {
			t.Errorf("%s:%s: split it by consumer, and embed the parts", path, problem)
		}
	})
	if interfaces < 100 {
		t.Errorf("only %d interfaces were found", interfaces)
	}
}

// largeInterfaces counts the interfaces of a file, and returns the lines and sizes of those that
// have too many methods.
func largeInterfaces(text []byte) (found int, large []string, err error) {
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, "", text, parser.SkipObjectResolution)
	if err != nil {
		return 0, nil, err
	}
	ast.Inspect(file, func(n ast.Node) bool {
		i, ok := n.(*ast.InterfaceType)
		if !ok {
			return true
		}
		found++
		methods := 0
		for _, field := range i.Methods.List {
			methods += len(field.Names) // none for an embedded interface
		}
		if methods > maxMethods {
			large = append(large, fmt.Sprintf("%d has %d methods", set.Position(i.Pos()).Line, methods))
		}
		return true
	})
	return found, large, nil
}

func TestLargeInterfacesAreFound(t *testing.T) {
	text := "package p\n\ntype small interface {\nB\nC\na()\nb()\n}\n\ntype large interface {\n"
	for i := range maxMethods + 1 {
		text += fmt.Sprintf("m%d()\n", i)
	}
	found, large, err := largeInterfaces([]byte(text + "}\n"))
	if want := []string{"10 has 11 methods"}; err != nil || found != 2 || !slices.Equal(large, want) {
		t.Errorf("found %d, %q, %v; want 2, %q", found, large, err, want)
	}
}

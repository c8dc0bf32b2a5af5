package rules

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// logged are the trees whose parts are given their loggers.
var logged = []string{"cluster"}

// defaultLoggers are the files below them that use the default logger, with the reason.
var defaultLoggers = map[string]string{
	"cluster/cmd/coracle-kube/command.go": "imported packages log by the default logger: the program replaces it by its own",
}

// ofDefault are the functions of log/slog that use or replace the default logger.
var ofDefault = []string{
	"Debug", "DebugContext", "Default", "Error", "ErrorContext", "Info", "InfoContext", "Log", "LogAttrs", "SetDefault",
	"Warn", "WarnContext", "With",
}

// Parts of logged do not use the default logger: who starts them decides where they log.
func TestLoggersAreInjected(t *testing.T) {
	root := filepath.Join("..", "..")
	files := map[string]int{}
	forGoFiles(t, func(path string, text []byte) {
		rel, err := filepath.Rel(root, path)
		if err != nil {
			t.Fatal(err)
		}
		at := slices.IndexFunc(logged, func(tree string) bool { return strings.HasPrefix(rel, tree+"/") })
		if at < 0 || strings.HasSuffix(rel, "_test.go") {
			return
		}
		files[logged[at]]++
		if defaultLoggers[rel] != "" {
			return
		}
		lines, err := usesDefaultLogger(text)
		if err != nil {
			t.Fatalf("%s: %v", rel, err)
		}
		for _, line := range lines {
			t.Errorf("%s:%d uses the default logger: take one from the caller", rel, line)
		}
	})
	for _, tree := range logged {
		if files[tree] == 0 {
			t.Errorf("%s has no files", tree)
		}
	}
}

// usesDefaultLogger returns the lines of a file that use the default logger of log/slog.
func usesDefaultLogger(text []byte) (lines []int, err error) {
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, "", text, 0)
	if err != nil {
		return nil, err
	}
	name := ""
	for _, i := range file.Imports {
		if i.Path.Value != `"log/slog"` {
			continue
		}
		if name = "slog"; i.Name != nil {
			name = i.Name.Name
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		if s, ok := n.(*ast.SelectorExpr); ok {
			if x, ok := s.X.(*ast.Ident); ok && x.Name == name && slices.Contains(ofDefault, s.Sel.Name) {
				lines = append(lines, set.Position(s.Pos()).Line)
			}
		}
		return true
	})
	return lines, nil
}

func TestUsesOfTheDefaultLoggerAreFound(t *testing.T) {
	text := "package p\n\nimport s \"log/slog\"\n\nfunc f(log *s.Logger) {\nlog.Info(\"a\")\ns.Info(\"a\")\ng(s.Default)\nslog.Info(\"a\")\n}\n"
	lines, err := usesDefaultLogger([]byte(text))
	if err != nil || !slices.Equal(lines, []int{7, 8}) {
		t.Errorf("got %v, %v; want lines 7 and 8", lines, err)
	}
}

// errorKey is the key of an error in a log; "error" next to a value would be a second one.
var errorKey = regexp.MustCompile(`[lL]og(ger)?(\(\))?\.(Debug|Info|Warn|Error)\(.*"error", `)

// Logs have one key for errors, so that a search finds them all.
func TestErrorsHaveOneKeyInLogs(t *testing.T) {
	files := 0
	forGoFiles(t, func(path string, text []byte) {
		files++
		for n, line := range bytes.Split(text, []byte("\n")) {
			if errorKey.Match(line) {
				t.Errorf(`%s:%d logs an error as "error", not as "err"`, path, n+1)
			}
		}
	})
	if files < 1000 {
		t.Errorf("only %d files were read", files)
	}
}

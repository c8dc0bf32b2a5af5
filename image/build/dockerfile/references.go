// Package dockerfile reads out of a Dockerfile which images a build needs.
package dockerfile

import (
	"bytes"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
	"github.com/moby/buildkit/frontend/dockerfile/shell"
)

// scratch is the base of a stage that starts with nothing.
const scratch = "scratch"

// References returns the images that building a stage takes files from, as the Dockerfile
// writes them with variables replaced: those of FROM, COPY --from and RUN --mount=from, of this
// stage and the stages that it builds on. target is a stage's name or number, or "" for
// the last; args are the values of --build-arg.
func References(file []byte, target string, args map[string]string) ([]string, error) {
	parsed, err := parser.Parse(bytes.NewReader(file))
	if err != nil {
		return nil, err
	}
	stages, meta, err := instructions.Parse(parsed.AST, nil)
	if err != nil {
		return nil, err
	}
	if len(stages) == 0 {
		return nil, fmt.Errorf("it has no FROM")
	}
	w := &walk{stages: stages, seen: map[int]bool{}, images: map[string]bool{}, lex: shell.NewLex(parsed.EscapeToken)}
	if err := w.setVariables(meta, args); err != nil {
		return nil, err
	}
	at := len(stages) - 1
	if target != "" {
		var ok bool
		if at, ok = w.stage(target, len(stages)); !ok {
			return nil, fmt.Errorf("it has no stage %q", target)
		}
	}
	if err := w.visit(at); err != nil {
		return nil, err
	}
	return slices.Sorted(maps.Keys(w.images)), nil
}

type walk struct {
	stages []instructions.Stage
	seen   map[int]bool
	images map[string]bool
	lex    *shell.Lex
	env    []string // variables that FROM knows
}

// setVariables collects what comes before the first FROM, and what every build sets.
func (w *walk) setVariables(meta []instructions.ArgCommand, args map[string]string) error {
	platform := "linux/" + runtime.GOARCH
	for _, who := range []string{"BUILD", "TARGET"} {
		w.env = append(w.env, who+"PLATFORM="+platform, who+"OS=linux", who+"ARCH="+runtime.GOARCH, who+"VARIANT=")
	}
	for _, command := range meta {
		for _, a := range command.Args {
			value, ok := args[a.Key]
			switch {
			case ok:
			case a.Value == nil:
				continue
			default:
				var err error
				if value, _, err = w.lex.ProcessWord(*a.Value, shell.EnvsFromSlice(w.env)); err != nil {
					return fmt.Errorf("ARG %s: %w", a.Key, err)
				}
			}
			w.env = append(w.env, a.Key+"="+value)
		}
	}
	return nil
}

// visit collects the images of a stage.
func (w *walk) visit(at int) error {
	if w.seen[at] {
		return nil
	}
	w.seen[at] = true
	s := w.stages[at]
	base, _, err := w.lex.ProcessWord(s.BaseName, shell.EnvsFromSlice(w.env))
	if err != nil {
		return fmt.Errorf("FROM %s: %w", s.BaseName, err)
	}
	if base == "" {
		return fmt.Errorf("FROM %s: it names nothing; give the variable a value with --build-arg", s.BaseName)
	}
	if err := w.from(base, at); err != nil {
		return err
	}
	for _, c := range s.Commands {
		switch c := c.(type) {
		case *instructions.CopyCommand:
			if err := w.from(c.From, at); err != nil {
				return err
			}
		case *instructions.RunCommand:
			// Their flags are understood once variables are replaced.
			if err := c.Expand(func(word string) (string, error) { return word, nil }); err != nil {
				return err
			}
			for _, m := range instructions.GetMounts(c) {
				if err := w.from(m.From, at); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// from follows what a stage names: an earlier stage, or an image.
func (w *walk) from(name string, at int) error {
	if name == "" || name == scratch || name == "context" || strings.Contains(name, "$") {
		return nil // BuildKit says that there is no variable here
	}
	if earlier, ok := w.stage(name, at); ok {
		return w.visit(earlier)
	}
	w.images[name] = true
	return nil
}

// stage finds one of the first n stages by name or number; of two with one name the later.
func (w *walk) stage(name string, n int) (at int, ok bool) {
	for i := n - 1; i >= 0; i-- {
		if w.stages[i].Name != "" && strings.EqualFold(w.stages[i].Name, name) {
			return i, true
		}
	}
	if i, err := strconv.Atoi(name); err == nil && i >= 0 && i < n {
		return i, true
	}
	return 0, false
}

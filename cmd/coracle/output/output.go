// Package output prints the answers of coracle: as tables, JSON or YAML.
package output

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/docker/go-units"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	"sigs.k8s.io/yaml"
)

// Format is how a command prints its answer: table, json or yaml.
type Format string

// Define adds the flag --output.
func (o *Format) Define(cmd *cobra.Command) {
	cmd.Flags().StringVarP((*string)(o), "output", "o", "table", "table, json or yaml")
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"table", "json", "yaml"}, cobra.ShellCompDirectiveNoFileComp))
}

// Print writes v. A table has what rows writes: one line for each thing, cells ended by tabs.
func (o Format) Print(out io.Writer, v any, rows func(w io.Writer)) error {
	switch o {
	case "json":
		e := json.NewEncoder(out)
		e.SetIndent("", "  ")
		return e.Encode(v)
	case "yaml":
		data, err := yaml.Marshal(v)
		if err != nil {
			return err
		}
		_, err = out.Write(data)
		return err
	case "table":
		w := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
		rows(w)
		return w.Flush()
	}
	return o.unknown()
}

func (o Format) unknown() error {
	return fmt.Errorf("--output %s: it is table, json or yaml", string(o))
}

// Check returns an error for an unknown format, for commands that change something first.
func (o Format) Check() error {
	if !slices.Contains([]Format{"json", "yaml", "table"}, o) {
		return o.unknown()
	}
	return nil
}

// Stream returns a function that prints one thing of many as it comes: text in the format table.
func (o Format) Stream(out io.Writer) (func(v any, text string) error, error) {
	switch o {
	case "json":
		return func(v any, _ string) error { return json.NewEncoder(out).Encode(v) }, nil
	case "yaml":
		return func(v any, _ string) error {
			data, err := yaml.Marshal(v)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(out, "---\n%s", data)
			return err
		}, nil
	case "table":
		return func(_ any, text string) error {
			_, err := fmt.Fprintln(out, text)
			return err
		}, nil
	}
	return nil, o.unknown()
}

// Row writes one line of a table.
func Row(w io.Writer, cells ...any) {
	for i, c := range cells {
		if i > 0 {
			_, _ = io.WriteString(w, "\t")
		}
		_, _ = fmt.Fprint(w, c)
	}
	_, _ = io.WriteString(w, "\n")
}

// NodeRow returns Row for tables whose first cell is a node. The cell is left out unless the table
// has several nodes.
func NodeRow(w io.Writer, several bool) func(node string, cells ...any) {
	return func(node string, cells ...any) {
		if several {
			cells = append([]any{node}, cells...)
		}
		Row(w, cells...)
	}
}

// Size formats a number of bytes for people.
func Size(bytes int64) string { return units.HumanSizeWithPrecision(float64(bytes), 3) }

// Ago formats how long ago a time was, for people.
func Ago(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return units.HumanDuration(time.Since(t)) + " ago"
}

// OneLine shortens a text of another author to at most so many characters, without control
// characters that would break a table.
func OneLine(s string, most int) string {
	s = strings.Join(strings.FieldsFunc(s, func(r rune) bool { return r <= ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 }), " ")
	if r := []rune(s); len(r) > most {
		return string(r[:most-1]) + "…"
	}
	return s
}

// IsTerminal reports whether a file is a terminal.
func IsTerminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// Package output prints the answers of coracle: as tables, JSON or YAML.
package output

import (
	"encoding/json"
	"errors"
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
func (o *Format) Define(cmd *cobra.Command) { o.define(cmd, "table", "json", "yaml") }

// DefineDocument adds the flag --output for documents, which cannot be a table.
func (o *Format) DefineDocument(cmd *cobra.Command) { o.define(cmd, "json", "yaml") }

// define adds the flag. The first of the formats is the default.
func (o *Format) define(cmd *cobra.Command, formats ...string) {
	*o = Format(formats[0])
	flag := &choice{to: o, of: formats}
	cmd.Flags().VarP(flag, "output", "o", flag.text())
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(formats, cobra.ShellCompDirectiveNoFileComp))
}

// choice is a flag that takes one of several formats. It implements pflag.Value.
type choice struct {
	to *Format
	of []string
}

func (c *choice) text() string {
	last := len(c.of) - 1
	return strings.Join(c.of[:last], ", ") + " or " + c.of[last]
}

// String implements pflag.Value, as do the next.
func (c *choice) String() string { return string(*c.to) }

func (c *choice) Type() string { return "string" }

func (c *choice) Set(name string) error {
	if !slices.Contains(c.of, name) {
		return errors.New("it is " + c.text())
	}
	*c.to = Format(name)
	return nil
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
	default:
		w := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
		rows(w)
		return w.Flush()
	}
}

// Stream returns a function that prints one thing of many as it comes: text in the format table.
func (o Format) Stream(out io.Writer) func(v any, text string) error {
	switch o {
	case "json":
		return func(v any, _ string) error { return json.NewEncoder(out).Encode(v) }
	case "yaml":
		return func(v any, _ string) error {
			data, err := yaml.Marshal(v)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(out, "---\n%s", data)
			return err
		}
	default:
		return func(_ any, text string) error {
			_, err := fmt.Fprintln(out, text)
			return err
		}
	}
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

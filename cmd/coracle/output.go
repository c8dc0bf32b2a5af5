package main

import (
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/docker/go-units"
	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"
)

// output is the form that a command prints its answer in.
type output string

// define adds the flag.
func (o *output) define(cmd *cobra.Command) {
	cmd.Flags().StringVarP((*string)(o), "output", "o", "table", "table, json or yaml")
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"table", "json", "yaml"}, cobra.ShellCompDirectiveNoFileComp))
}

// print writes v, as a table with what rows writes: one line each, cells ended by tabs.
func (o output) print(out io.Writer, v any, rows func(w io.Writer)) error {
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

func (o output) unknown() error {
	return fmt.Errorf("--output %s: it is table, json or yaml", string(o))
}

// row writes one line of a table.
func row(w io.Writer, cells ...any) {
	for i, c := range cells {
		if i > 0 {
			_, _ = io.WriteString(w, "\t")
		}
		_, _ = fmt.Fprint(w, c)
	}
	_, _ = io.WriteString(w, "\n")
}

// human is a number of bytes for people.
func human(bytes int64) string { return units.HumanSizeWithPrecision(float64(bytes), 3) }

// ago is how long something is past, for people.
func ago(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return units.HumanDuration(time.Since(t)) + " ago"
}

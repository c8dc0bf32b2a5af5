package page

import (
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/template"
)

//go:embed parts/*.tmpl
var files embed.FS

// templates are the texts of the parts that programs write.
var templates = template.Must(template.New("").Option("missingkey=error").Funcs(template.FuncMap{
	"table":  func(t Table, r *Report) string { return markdown(t.Rows(r.Figures)) },
	"median": (*Report).median,
	"count":  (*Report).count,
}).ParseFS(files, "parts/*.tmpl"))

var names = map[Part]string{Runtimes: "runtimes.tmpl", Images: "images.tmpl", Clusters: "clusters.tmpl", Container: "container.tmpl"}

// Report is what was measured, and where.
type Report struct {
	Date     string            `json:"date"`
	Machine  Machine           `json:"machine"`
	Versions map[string]string `json:"versions"` // of what was measured
	Figures  []Figure          `json:"figures"`

	Part   Part           `json:"-"`
	Tables []Table        `json:"-"`
	Given  map[string]any `json:"-"` // what else the text says: how it was measured
}

// Machine is where it was measured.
type Machine struct {
	CPUs       int    `json:"cpus"`
	Model      string `json:"cpu_model"`
	Kernel     string `json:"kernel"`
	Busy       bool   `json:"busy"` // with other things, too
	LoadBefore string `json:"load_before"`
	LoadAfter  string `json:"load_after"`
}

// Finish prints the tables, and writes the figures as JSON and the part of a page into the files
// that have names. An error of one does not keep it from writing the other.
func (r *Report) Finish(out, page string) error {
	r.Print(os.Stdout)
	var lost, unwritten error
	if out != "" {
		lost = r.writeJSON(out)
	}
	if page != "" {
		var text string
		if text, unwritten = r.text(); unwritten == nil {
			unwritten = Write(page, r.Part, text)
		}
	}
	return errors.Join(lost, unwritten)
}

func (r *Report) writeJSON(path string) error {
	raw, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(raw, '\n'), 0o644)
}

// Print prints the tables.
func (r *Report) Print(w io.Writer) {
	for _, t := range r.Tables {
		fmt.Fprintln(w, aligned(t.Rows(r.Figures)))
	}
}

// text is the part of the page.
func (r *Report) text() (string, error) {
	var b strings.Builder
	err := templates.ExecuteTemplate(&b, names[r.Part], r)
	return b.String(), err
}

// Circumstances are the lines below a table: the machine, and what version each column is of.
func (r *Report) Circumstances() string {
	var b strings.Builder
	m := r.Machine
	fmt.Fprintf(&b, "%s, %d CPUs (%s), Linux %s, load %s before and %s after", r.Date, m.CPUs, m.Model, m.Kernel, m.LoadBefore, m.LoadAfter)
	if m.Busy {
		b.WriteString("; the machine did other things, too")
	}
	b.WriteString(".\n")
	for _, c := range r.Tables[0].Columns {
		if about := r.Versions[c.Of]; about != "" && c.Than == nil {
			fmt.Fprintf(&b, "- %s: %s\n", c.Of, about)
		}
	}
	return b.String()
}

func (r *Report) median(of, name string) float64 { return Quantile(Values(r.Figures, of, name), .5) }
func (r *Report) count(of string) int            { return len(Values(r.Figures, of, "")) }

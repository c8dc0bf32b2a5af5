package page

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
)

// Figure is one value that was measured. The programs below bench print figures as JSON, bench
// makes tables of them. A figure that was measured several times has several values.
type Figure struct {
	Of    string  `json:"stack"` // what was measured: a column, mostly
	Name  string  `json:"name"`  // and which of its properties: a row, below the last with less indentation
	Unit  string  `json:"unit"`
	Value float64 `json:"value"`
	More  bool    `json:"more,omitempty"` // is better
}

// Table says which figures are shown, and how. It has a row for each name among the figures of its
// columns, in the order of the figures.
type Table struct {
	Corner  string // the unit that rows do not name, or anything else
	Columns []Column
}

// Column shows the values of something, or compares them.
type Column struct {
	Head string
	Of   string
	Cell func(values []float64) string
	Than *Than // instead of Cell
}

// Than has a column say how many times the other median its median is, or the reverse if more is
// better.
type Than struct {
	Of     string // the other one, if not the column's own
	Row    string // of "NAME, KIND" rows, the NAME of the other one
	Digits int
	None   string // what is written where there is nothing to compare
}

// Rows are the table, its head first.
func (t Table) Rows(figures []Figure) [][]string {
	type key struct{ of, name string }
	var names []Figure
	values := map[key][]float64{}
	for _, f := range figures {
		if !slices.ContainsFunc(t.Columns, func(c Column) bool { return c.Of == f.Of }) {
			continue
		}
		if !slices.ContainsFunc(names, func(n Figure) bool { return n.Name == f.Name }) {
			names = append(names, f)
		}
		k := key{f.Of, f.Name}
		values[k] = append(values[k], f.Value)
	}
	head := []string{t.Corner}
	for _, c := range t.Columns {
		head = append(head, c.Head)
	}
	rows := [][]string{head}
	for _, f := range names {
		row := []string{f.Name}
		if f.Unit != "" && f.Unit != t.Corner {
			row[0] += ", " + f.Unit
		}
		for _, c := range t.Columns {
			all, cell := values[key{c.Of, f.Name}], ""
			switch {
			case c.Than != nil:
				other := key{c.Than.Of, f.Name}
				if c.Than.Row != "" {
					_, kind, _ := strings.Cut(f.Name, ", ")
					other = key{c.Of, c.Than.Row + ", " + kind}
				}
				cell = c.Than.times(all, values[other], f.More)
			case len(all) > 0:
				cell = c.Cell(all)
			}
			row = append(row, cell)
		}
		rows = append(rows, row)
	}
	return rows
}

func (t *Than) times(these, others []float64, more bool) string {
	a, b := Quantile(these, .5), Quantile(others, .5)
	if more {
		a, b = b, a
	}
	if a <= 0 || b <= 0 {
		return t.None
	}
	return strconv.FormatFloat(a/b, 'f', t.Digits, 64)
}

// Values are those of one figure, as they were measured; an empty name is the first one's.
func Values(figures []Figure, of, name string) (all []float64) {
	for _, f := range figures {
		if f.Of == of && (name == "" || name == f.Name) {
			name, all = f.Name, append(all, f.Value)
		}
	}
	return all
}

// at writes one quantile.
func at(q float64, write func(float64) string) func([]float64) string {
	return func(values []float64) string { return write(Quantile(values, q)) }
}

// spread writes the median and, in brackets, two more quantiles; what has only one value, as single
// does.
func spread(low, high float64, write, single func(float64) string) func([]float64) string {
	return func(values []float64) string {
		if len(values) == 1 {
			return single(values[0])
		}
		return fmt.Sprintf("%s (%s–%s)", write(Quantile(values, .5)), write(Quantile(values, low)), write(Quantile(values, high)))
	}
}

// Quantile is the value at the place q, from 0 to 1, of the sorted values, rounded down; 0 of
// nothing.
func Quantile(values []float64, q float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	return sorted[int(float64(len(sorted)-1)*q)]
}

// hundredths and whole write so much of a number.
func hundredths(v float64) string { return strconv.FormatFloat(v, 'f', 2, 64) }
func whole(v float64) string      { return strconv.FormatFloat(v, 'f', 0, 64) }

// short writes two digits at least, and no more than one thousandth.
func short(v float64) string {
	switch {
	case v >= 99.95:
		return fmt.Sprintf("%.0f", v)
	case v >= 1:
		return fmt.Sprintf("%.1f", v)
	case v >= 0.1:
		return fmt.Sprintf("%.2f", v)
	}
	return fmt.Sprintf("%.3f", v)
}

// significant writes three digits at least, and no exponent.
func significant(v float64) string {
	digits := 0
	for limit := 100.0; digits < 2 && v < limit; limit /= 10 {
		digits++
	}
	return strconv.FormatFloat(v, 'f', digits, 64)
}

// markdown writes a table for a page; the first row is its head.
func markdown(rows [][]string) string {
	var b strings.Builder
	for i, row := range rows {
		name := strings.TrimLeft(row[0], " ")
		name = strings.Repeat("&nbsp; ", (len(row[0])-len(name))/2) + name
		fmt.Fprintf(&b, "| %s |\n", strings.Join(append([]string{name}, row[1:]...), " | "))
		if i == 0 {
			fmt.Fprintf(&b, "| --- |%s\n", strings.Repeat(" ---: |", len(row)-1))
		}
	}
	return b.String()
}

// aligned writes a table for a terminal.
func aligned(rows [][]string) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 8, 2, ' ', 0)
	for _, row := range rows {
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	_ = w.Flush()
	return b.String()
}

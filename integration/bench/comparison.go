package main

import (
	"fmt"
	"strings"
	"text/tabwriter"
)

// comparison is a table: one row per figure, one column per runtime, and how many times the first
// runtime's figure each other one is.
type comparison[R any] struct {
	results []R
	rows    [][]string
}

func compare[R any](corner string, results []R, target func(R) string) *comparison[R] {
	head := []string{corner}
	for i, r := range results {
		head = append(head, target(r))
		if i > 0 {
			head = append(head, "×")
		}
	}
	return &comparison[R]{results, [][]string{head}}
}

// add adds a row: a figure, and how it is written.
func (c *comparison[R]) add(name string, value func(R) (figure float64, text string)) {
	row := []string{name}
	var first float64
	for i, r := range c.results {
		v, text := value(r)
		row = append(row, text)
		if i == 0 {
			first = v
			continue
		}
		ratio := "–"
		if first > 0 && v > 0 {
			ratio = fmt.Sprintf("%.1f", v/first)
		}
		row = append(row, ratio)
	}
	c.rows = append(c.rows, row)
}

// aligned is a table for a terminal.
func aligned(rows [][]string) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 8, 2, ' ', 0)
	for _, row := range rows {
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	_ = w.Flush()
	return b.String()
}

// describe is a sentence about a machine, without its end.
func (m machine) describe(date string) string {
	return fmt.Sprintf("%s, %d CPUs (%s), Linux %s", date, m.CPUs, m.Model, m.Kernel)
}

// circumstances are the lines below a table: the machine, and what version each runtime is.
func (m machine) circumstances(date string, versions [][2]string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "\n%s, load %s before and %s after.\n", m.describe(date), m.LoadBefore, m.LoadAfter)
	for _, v := range versions {
		if v[1] != "" {
			fmt.Fprintf(&b, "- %s: %s\n", v[0], v[1])
		}
	}
	return b.String()
}

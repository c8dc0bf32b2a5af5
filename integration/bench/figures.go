package main

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"text/tabwriter"
)

// figures are what one runtime was measured to be: by name, with its unit, one value per run.
type figures struct {
	Names  []string             `json:"-"` // in the order in which they were found
	Values map[string][]float64 `json:"values"`
}

// add adds the value of one run.
func (f *figures) add(name string, value float64) {
	if f.Values == nil {
		f.Values = map[string][]float64{}
	}
	if _, has := f.Values[name]; !has {
		f.Names = append(f.Names, name)
	}
	f.Values[name] = append(f.Values[name], value)
}

// table has a row per figure, a column per runtime, each with the median of its runs and, in
// brackets, the lowest and the highest; and how many times the first runtime's median each other
// one is.
func table(corner string, targets []string, of []*figures) [][]string {
	head := []string{corner}
	for i, t := range targets {
		head = append(head, t)
		if i > 0 {
			head = append(head, "×")
		}
	}
	rows := [][]string{head}
	for _, name := range of[0].Names {
		row := []string{name}
		first := quantile(of[0].Values[name], .5)
		for i, f := range of {
			all := f.Values[name]
			row = append(row, spread(all))
			if i == 0 {
				continue
			}
			ratio := "–"
			if v := quantile(all, .5); first > 0 && v > 0 {
				ratio = fmt.Sprintf("%.1f", v/first)
			}
			row = append(row, ratio)
		}
		rows = append(rows, row)
	}
	return rows
}

// spread is the median of several runs, and in brackets the lowest and the highest.
func spread(all []float64) string {
	switch len(all) {
	case 0:
		return ""
	case 1:
		return short(all[0])
	}
	return fmt.Sprintf("%s (%s–%s)", short(quantile(all, .5)), short(slices.Min(all)), short(slices.Max(all)))
}

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

// quantile is the smallest value that q of all values do not exceed.
func quantile(all []float64, q float64) float64 {
	if len(all) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(all))
	return sorted[max(0, int(math.Ceil(q*float64(len(sorted))))-1)]
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

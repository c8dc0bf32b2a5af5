package main

import (
	"fmt"
	"reflect"
	"testing"
)

func TestComparison(t *testing.T) {
	c := compare("ms", []float64{2, 5, 0}, func(v float64) string { return fmt.Sprintf("of %g", v) })
	c.add("start", func(v float64) (float64, string) { return v, fmt.Sprint(v) })
	want := [][]string{{"ms", "of 2", "of 5", "×", "of 0", "×"}, {"start", "2", "5", "2.5", "0", "–"}}
	if !reflect.DeepEqual(c.rows, want) {
		t.Errorf("%q", c.rows)
	}
}

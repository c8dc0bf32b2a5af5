package page

import (
	"reflect"
	"testing"
)

func TestCompared(t *testing.T) {
	var all []Figure
	for _, v := range []float64{3, 1, 2} {
		all = append(all, Figure{Of: "a", Name: "start, ms", Value: v}, Figure{Of: "b", Name: "start, ms", Value: 100 * v})
	}
	all = append(all, Figure{Of: "a", Name: "size, MB", Value: 0.25})
	got := Compared([]string{"a", "b", "c"}).Rows(all)
	want := [][]string{
		{"median (lowest–highest)", "a", "b", "×", "c", "×"},
		{"start, ms", "2.0 (1.0–3.0)", "200 (100–300)", "100.0", "", "–"},
		{"size, MB", "0.25", "", "–", "", "–"},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%q", got)
	}
}

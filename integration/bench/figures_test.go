package main

import (
	"reflect"
	"testing"
)

func TestTable(t *testing.T) {
	var ours, theirs, none figures
	for _, v := range []float64{3, 1, 2} {
		ours.add("start, ms", v)
		theirs.add("start, ms", 100*v)
	}
	ours.add("size, MB", 0.25)
	got := table("medians", []string{"a", "b", "c"}, []*figures{&ours, &theirs, &none})
	want := [][]string{
		{"medians", "a", "b", "×", "c", "×"},
		{"start, ms", "2.0 (1.0–3.0)", "200 (100–300)", "100.0", "", "–"},
		{"size, MB", "0.25", "", "–", "", "–"},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%q", got)
	}
}

package pki

import (
	"slices"
	"testing"
	"time"
)

// A certificate that was made while the clock was ahead is not older than a rotation.
func TestWhatARotationKeeps(t *testing.T) {
	noted := time.Now()
	early, late := noted.Add(-time.Hour), noted.Add(time.Hour)
	before := Holding{"a": {"1", early}, "b": {"2", late}, "c": {"3", early}}
	for name, test := range map[string]struct {
		after Holding
		want  []string
	}{
		"all are replaced":                  {Holding{"a": {"4", noted}, "b": {"5", noted}, "c": {"6", noted}}, nil},
		"none":                              {before, []string{"a", "b", "c"}},
		"not one that is younger":           {Holding{"a": {"4", noted}, "b": {"2", late}, "c": {"6", noted}}, []string{"b"}},
		"not one that is no file of Ensure": {Holding{"a": {"4", noted}, "b": {"5", noted}, "c": {"3", early}}, nil},
		"one is gone":                       {Holding{"b": {"5", noted}, "c": {"6", noted}}, nil},
	} {
		if got := before.Kept(test.after, noted); !slices.Equal(got, test.want) {
			t.Errorf("%s: %v, want %v", name, got, test.want)
		}
	}
	if got := (Holding{}).Kept(Holding{}, noted); got != nil {
		t.Errorf("of nothing: %v", got)
	}
}

func TestWhatARotationReplaces(t *testing.T) {
	dir := t.TempDir()
	for range 2 {
		if _, err := Ensure(dir, "https://127.0.0.1:1", []string{"127.0.0.1"}, nil); err != nil {
			t.Fatal(err)
		}
		for _, what := range []What{{Certificates: true}, {ServiceAccountKey: true}} {
			noted := time.Now()
			before, err := Hold(dir, what)
			if err != nil || len(before) == 0 {
				t.Fatalf("%+v: %v, %v", what, before, err)
			}
			if err := Rotate(dir, what); err != nil {
				t.Fatal(err)
			}
			if kept := before.Kept(before, noted); len(kept) != len(before) {
				t.Errorf("%+v: before it, only these are kept: %v", what, kept)
			}
			if _, err := Ensure(dir, "https://127.0.0.1:1", []string{"127.0.0.1"}, nil); err != nil {
				t.Fatal(err)
			}
			after, err := Hold(dir, what)
			if kept := before.Kept(after, noted); err != nil || len(kept) != 0 {
				t.Errorf("%+v: kept %v, %v", what, kept, err)
			}
		}
	}
}

package testnet

import (
	"context"
	"io"
	"slices"
	"strings"
	"testing"
	"time"
)

// Open opens something in a space, such as a table of rules, until the test ends.
func Open[T io.Closer](t testing.TB, s *Space, open func() (T, error)) T {
	t.Helper()
	var opened T
	var err error
	s.Within(func() { opened, err = open() })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = opened.Close() })
	return opened
}

// Repaired is a table that corrects what others do to it.
type Repaired interface {
	Changed() <-chan struct{}
	Repair(context.Context) (differed bool, err error)
}

// Repairs does to a table what others may do, as nft is told, and checks that it is noticed, and
// that one Repair makes the table what it was, most of them within a second: a busy machine may
// hold up some. And then is called.
func Repairs(t *testing.T, s *Space, table Repaired, changes []string, and func()) {
	t.Helper()
	select {
	case <-table.Changed():
		t.Error("the table's own transactions count as someone else's")
	default:
	}
	listed := func() string { return SortedLines(s.Run("nft -nn list ruleset")) }
	want := listed()
	var times []time.Duration
	for _, change := range changes {
		s.Run("nft " + change)
		select {
		case <-table.Changed():
		case <-time.After(Patience):
			t.Fatalf("%s: nothing was noticed", change)
		}
		if listed() == want {
			t.Errorf("%s: nothing changed, so the test shows nothing", change)
		}
		var differed bool
		var err error
		// It may open a socket again. The time of nft's runs does not count.
		began := time.Now()
		s.Within(func() { differed, err = table.Repair(t.Context()) })
		took := time.Since(began)
		if err != nil || !differed {
			t.Fatalf("%s: %v, found a difference: %t", change, err, differed)
		}
		times = append(times, took)
		if got := listed(); got != want {
			t.Errorf("%s: not repaired:\n%s\nwant:\n%s", change, got, want)
		}
		and()
	}
	if slices.Sort(times); times[len(times)/2] > time.Second {
		t.Errorf("repaired after %v", times)
	}
}

// SortedLines makes listings of nft comparable: the order of elements varies.
func SortedLines(text string) string {
	words := strings.FieldsFunc(text, func(r rune) bool { return r == '\n' || r == ',' || r == '{' || r == '}' })
	var kept []string
	for _, w := range words {
		w = strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(w), "elements ="))
		if w != "" {
			kept = append(kept, w)
		}
	}
	slices.Sort(kept)
	return strings.Join(kept, "\n")
}

package workload

import (
	"strings"
	"testing"
	"time"

	"github.com/coracle-project/coracle/internal/crilog"
)

func TestParseSince(t *testing.T) {
	now := time.Date(2026, 1, 2, 15, 0, 0, 0, time.UTC)
	for _, tc := range []struct {
		in   string
		want time.Time
		bad  bool
	}{
		{in: "", want: time.Time{}},
		{in: "10m", want: now.Add(-10 * time.Minute)},
		{in: "2026-01-02T14:00:00+01:00", want: now.Add(-2 * time.Hour)},
		{in: "-10m", bad: true},
		{in: "yesterday", bad: true},
	} {
		got, err := parseSince(tc.in, now)
		if (err != nil) != tc.bad || !got.Equal(tc.want) {
			t.Errorf("%q is %v, %v", tc.in, got, err)
		}
	}
}

// both is a terminal that has both streams.
type both struct{ strings.Builder }

func TestPrintLog(t *testing.T) {
	at := time.Date(2026, 1, 2, 15, 0, 0, 5, time.UTC)
	lines := []crilog.Line{
		{Time: at, Stream: crilog.Stdout, Text: []byte("a")},
		{Time: at, Stream: crilog.Stderr, Text: []byte("b"), Partial: true},
		{Time: at, Stream: crilog.Stderr, Text: []byte("c")},
		{Time: at, Stream: crilog.Stdout, Text: []byte("")},
		{Time: at, Stream: crilog.Stdout, Text: []byte("no end"), Partial: true},
	}
	const stamp = "2026-01-02T15:00:00.000000005Z "
	for _, tc := range []struct {
		stamps bool
		want   string
	}{
		{false, "a\nbc\n\nno end"},
		{true, stamp + "a\n" + stamp + "bc\n" + stamp + "\n" + stamp + "no end"},
	} {
		var out both
		p := newLogPrinter(&out, &out, tc.stamps)
		for _, l := range lines {
			if err := p.print(l); err != nil {
				t.Fatal(err)
			}
		}
		if err := p.flush(); err != nil || out.String() != tc.want {
			t.Errorf("%q, %v; want %q", out.String(), err, tc.want)
		}
	}
}

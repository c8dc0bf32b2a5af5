package workload

import (
	"strings"
	"testing"

	"github.com/coracle-project/coracle/cmd/coracle/usage"
)

func aReading() []usage.Usage {
	some, more := 0.25, 1.5
	return []usage.Usage{
		{Namespace: "shop", Pod: "db", CPU: &some, Memory: 3000},
		{Namespace: "shop", Pod: "db", Container: "postgres", CPU: &some, Memory: 3000},
		{Namespace: "shop", Pod: "web", CPU: &more, Memory: 2000},
		{Namespace: "shop", Pod: "web", Container: "nginx", CPU: &more, Memory: 2000},
		{Namespace: "shop", Pod: "web", Container: "new\x1b[31m", Memory: 10},
	}
}

// rows are the words of the table's lines in a column.
func rows(text string, column int) string {
	var words []string
	for _, l := range strings.Split(text, "\n")[3:] {
		words = append(words, strings.Fields(l)[column])
	}
	return strings.Join(words, " ")
}

func TestTopSorts(t *testing.T) {
	v := &topView{by: byCPU}
	for _, tc := range []struct {
		keys   string
		column int
		want   string
	}{
		{"", 2, "nginx postgres new"},
		{"m", 2, "postgres nginx new"},
		{"n", 2, "postgres nginx new"},
		{"p", 1, "db web"},
		{"c", 1, "web db"},
		{"pz", 2, "nginx postgres new"},
	} {
		for _, k := range []byte(tc.keys) {
			if !v.press(k) {
				t.Errorf("%q ends it", k)
			}
		}
		// What a runtime calls things cannot move our cursor.
		text := v.text(aReading())
		if got := strings.ReplaceAll(rows(text, tc.column), "[31m", ""); got != tc.want || strings.Contains(text, "\x1b") {
			t.Errorf("after %q: %q, want %q", tc.keys, got, tc.want)
		}
	}
	if !strings.HasPrefix(v.text(aReading()), "pods 2, containers 3, cores 1.750, memory 5kB; by cores\n") {
		t.Error(v.text(aReading()))
	}
	if v.press('q') || v.press(interrupt) {
		t.Error("q and Ctrl-C do not end it")
	}
}

func TestTopFitsTheScreen(t *testing.T) {
	v := &topView{by: byCPU}
	for _, size := range [][2]int{{80, 24}, {20, 4}, {1, 1}, {0, 0}} {
		s := v.screen(aReading(), size[0], size[1])
		lines := strings.Split(s, "\r\n")
		if len(lines) > max(size[1], 2) {
			t.Errorf("%v: %d lines", size, len(lines))
		}
		for _, l := range lines {
			l = strings.NewReplacer("\x1b[H", "", "\x1b[K", "", "\x1b[J", "").Replace(l)
			if len([]rune(l)) > size[0] {
				t.Errorf("%v: %q", size, l)
			}
		}
	}
}

package bar

import (
	"bytes"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// On a terminal a bar that fits is drawn over itself, and gone at the end.
func TestBar(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		p := New(&out, "pull registry.example/app:2")
		p.width = 80
		for done := range int64(101) {
			p.At(done*1e6, 100e6)
			time.Sleep(20 * time.Millisecond)
		}
		drawn := strings.Split(out.String(), "\r\x1b[J")
		if len(drawn) < 15 || len(drawn) > 25 {
			t.Errorf("drawn %d times in 2 s", len(drawn))
		}
		for _, line := range drawn {
			if len(line) >= 80 {
				t.Errorf("%d columns: %q", len(line), line)
			}
		}
		if middle := drawn[len(drawn)/2]; !strings.Contains(middle, "[==") || !strings.Contains(middle, "MB of 100MB, 50MB/s") {
			t.Errorf("in the middle: %q", middle)
		}
		out.Reset()
		p.Note("a note")
		p.End()
		if out.String() != "\r\x1b[Jpull registry.example/app:2: a note\npull registry.example/app:2: 100MB, 49.5MB/s\n" {
			t.Errorf("at the end: %q", out.String())
		}
		p.width = 20 // too narrow for a bar
		out.Reset()
		p.show()
		if len(out.String()) > 20+len("\r\x1b[J") || strings.Contains(out.String(), "[=") {
			t.Errorf("narrow: %q", out.String())
		}
	})
}

// Each part has a line of its own where there is room, and the whole is drawn over itself.
func TestPartsOfBar(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		p := New(&out, "pull app")
		p.width, p.height = 60, 24
		p.Part(1, Part{Name: "bbbb", Total: 20e6})
		p.Part(0, Part{Name: "aaaa", Done: 1, Total: 10e6})
		time.Sleep(time.Second)
		p.Part(0, Part{Name: "aaaa", Done: 5e6, Total: 10e6})
		p.Part(2, Part{Name: "cccc", Done: 1e6, Total: 1e6, Complete: true})
		p.Part(3, Part{Name: "dddd", Done: 2e6, Total: 2e6})
		p.At(8e6, 33e6)
		lines := strings.Split(out.String(), "\n")
		if len(lines) != 5 {
			t.Fatalf("drawn: %q", lines)
		}
		for i, want := range []string{"aaaa [====", "bbbb [    ", "cccc [====", "dddd [====", "pull app [==="} {
			if !strings.HasPrefix(lines[i], want) || len(lines[i]) >= 60 {
				t.Errorf("line %d: %q, want %q…", i, lines[i], want)
			}
		}
		for i, want := range []string{"5MB of 10MB, 5MB/s", "20MB, waiting", "1MB, done", "2MB, unpacking", "8MB of 33MB, 8MB/s"} {
			if !strings.HasSuffix(lines[i], want) {
				t.Errorf("line %d: %q, want …%q", i, lines[i], want)
			}
		}
		out.Reset()
		p.height = 3 // too low for all of them: those that are done are left out, and the last of the others
		p.show()
		if text, ok := strings.CutPrefix(out.String(), "\r\x1b[4A\x1b[J"); !ok || strings.Count(text, "\n") != 2 ||
			strings.Contains(text, "cccc") || strings.Contains(text, "dddd") {
			t.Errorf("low: %q", out.String())
		}
		out.Reset()
		p.End()
		if !strings.HasPrefix(out.String(), "\r\x1b[2A\x1b[Jpull app: ") {
			t.Errorf("at the end: %q", out.String())
		}
	})
}

// Elsewhere there is a line now and then, and nothing that moves a cursor.
func TestPlainProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		p := New(&out, "load")
		for range 60 {
			p.Add(1e6)
			time.Sleep(200 * time.Millisecond)
		}
		p.End()
		if lines := strings.Split(strings.TrimSpace(out.String()), "\n"); len(lines) != 3 || lines[2] != "load: 60MB, 5MB/s" ||
			strings.Contains(out.String(), "\x1b") {
			t.Errorf("said %q", out.String())
		}
	})
}

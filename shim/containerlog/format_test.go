package containerlog

import (
	"bytes"
	"strings"
	"testing"
	"time"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 6, time.UTC)

func TestAppendLog(t *testing.T) {
	const head = "2026-01-02T12:00:00.000000006Z stdout "
	long := strings.Repeat("x", maxLogLine)
	for name, tc := range map[string]struct {
		in   string
		rest rest
		want string
		used int
	}{
		"nothing":              {"", flushRest, "", 0},
		"line":                 {"a b\n", keepRest, head + "F a b\n", 4},
		"empty line":           {"\n", keepRest, head + "F \n", 1},
		"unfinished":           {"a\nb", keepRest, head + "F a\n", 2},
		"unfinished, flushed":  {"a\nb", flushRest, head + "F a\n" + head + "P b\n", 3},
		"carriage return":      {"a\r\n", keepRest, head + "F a\r\n", 3},
		"NUL and bad UTF-8":    {"\x00\xff\n", keepRest, head + "F \x00\xff\n", 3},
		"longest line":         {long + "\n", keepRest, head + "F " + long + "\n", maxLogLine + 1},
		"longest, unfinished":  {long, keepRest, "", 0},
		"one byte too long":    {long + "y\n", keepRest, head + "P " + long + "\n" + head + "F y\n", maxLogLine + 2},
		"too long, unfinished": {long + "y", keepRest, head + "P " + long + "\n", maxLogLine},
	} {
		t.Run(name, func(t *testing.T) {
			got, used := appendLog(nil, []byte(tc.in), noon, "stdout", tc.rest)
			if string(got) != tc.want || used != tc.used {
				t.Errorf("got %q, %d; want %q, %d", got, used, tc.want, tc.used)
			}
		})
	}
}

// However the bytes are cut into pieces, the text of the records is what was written.
func FuzzAppendLog(f *testing.F) {
	f.Add([]byte("a\nb\n\nc"), uint16(3))
	f.Add(bytes.Repeat([]byte("x"), 3*maxLogLine), uint16(maxLogLine))
	f.Add([]byte("\n"), uint16(1))
	f.Fuzz(func(t *testing.T, in []byte, piece uint16) {
		var out, pending []byte
		for rest := in; len(rest) > 0; {
			n := min(len(rest), int(piece)+1)
			pending = append(pending, rest[:n]...)
			rest = rest[n:]
			var used int
			out, used = appendLog(out, pending, noon, "stderr", keepRest)
			pending = pending[used:]
			if len(pending) > maxLogLine {
				t.Fatalf("%d bytes are kept", len(pending))
			}
		}
		out, used := appendLog(out, pending, noon, "stderr", flushRest)
		if used != len(pending) {
			t.Fatalf("%d of %d bytes flushed", used, len(pending))
		}
		var text []byte
		for line := range bytes.Lines(out) {
			fields := bytes.SplitN(line, []byte(" "), 4)
			if len(fields) != 4 || string(fields[1]) != "stderr" || len(fields[3]) > maxLogLine+1 {
				t.Fatalf("record %q", line)
			}
			switch string(fields[2]) {
			case "F":
				text = append(text, fields[3]...)
			case "P":
				text = append(text, fields[3][:len(fields[3])-1]...)
			default:
				t.Fatalf("record %q", line)
			}
		}
		if !bytes.Equal(text, in) {
			t.Fatalf("got %q, want %q", text, in)
		}
	})
}

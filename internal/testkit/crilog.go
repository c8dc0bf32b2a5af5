package testkit

import (
	"fmt"
	"os"
	"strings"
	"time"
)

// LogLine is one line of a container's log in CRI format.
type LogLine struct {
	Time    time.Time
	Stream  string // "stdout" or "stderr"
	Partial bool   // tag P: the line goes on in the next one
	Text    string
}

// ReadLog parses a CRI log file; an incomplete last line is an error, as writers
// write whole lines.
func ReadLog(path string) ([]LogLine, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var lines []LogLine
	for n, s := range strings.SplitAfter(string(raw), "\n") {
		if s == "" {
			break
		}
		text, whole := strings.CutSuffix(s, "\n")
		parts := strings.SplitN(text, " ", 4)
		if !whole || len(parts) != 4 {
			return lines, fmt.Errorf("%s:%d: not a whole log line: %q", path, n+1, s)
		}
		at, err := time.Parse(time.RFC3339Nano, parts[0])
		if err != nil {
			return lines, fmt.Errorf("%s:%d: %w", path, n+1, err)
		}
		if parts[1] != "stdout" && parts[1] != "stderr" || parts[2] != "F" && parts[2] != "P" {
			return lines, fmt.Errorf("%s:%d: stream %q, tag %q", path, n+1, parts[1], parts[2])
		}
		lines = append(lines, LogLine{Time: at, Stream: parts[1], Partial: parts[2] == "P", Text: parts[3]})
	}
	return lines, nil
}

// Text joins the lines of one stream ("" for all) as the container wrote them.
func Text(lines []LogLine, stream string) string {
	var b strings.Builder
	for _, l := range lines {
		if stream != "" && l.Stream != stream {
			continue
		}
		b.WriteString(l.Text)
		if !l.Partial {
			b.WriteByte('\n')
		}
	}
	return b.String()
}

package testkit

import (
	"os"
	"path/filepath"
	"testing"
)

func TestReadLog(t *testing.T) {
	const at = "2026-01-02T03:04:05.000000006Z "
	for _, tc := range []struct {
		name, log, text string
		wrong           bool
	}{
		{name: "empty"},
		{name: "line", log: at + "stdout F hello world\n", text: "hello world\n"},
		{name: "empty line", log: at + "stdout F \n", text: "\n"},
		{name: "partial", log: at + "stdout P a\n" + at + "stdout F b\n", text: "ab\n"},
		{name: "torn", log: at + "stdout F hel", wrong: true},
		{name: "stream", log: at + "stdfoo F x\n", wrong: true},
		{name: "tag", log: at + "stdout X x\n", wrong: true},
		{name: "time", log: "yesterday stdout F x\n", wrong: true},
		{name: "short", log: at + "stdout\n", wrong: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := filepath.Join(t.TempDir(), "log")
			if err := os.WriteFile(p, []byte(tc.log), 0o600); err != nil {
				t.Fatal(err)
			}
			lines, err := ReadLog(p)
			if (err != nil) != tc.wrong {
				t.Fatalf("err = %v, wrong = %v", err, tc.wrong)
			}
			if got := Text(lines, ""); err == nil && got != tc.text {
				t.Errorf("text = %q, want %q", got, tc.text)
			}
		})
	}
}

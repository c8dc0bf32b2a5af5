package output

import "testing"

// Control characters in an image do not reach the terminal.
func TestOneLine(t *testing.T) {
	for in, want := range map[string]string{
		"plain": "plain", "a\nb\tc": "a b c", "\x1b[31mred\x1b[0m": "[31mred [0m", "csi\u009b1m": "csi 1m",
		"ünïcödé and more than fits": "ünïcödé and more th…",
	} {
		if got := OneLine(in, 20); got != want {
			t.Errorf("%q is shown as %q, want %q", in, got, want)
		}
	}
}

package driver

import (
	"strings"
	"testing"
)

func FuzzUnescape(f *testing.F) {
	for _, x := range []string{`a\040b`, `\`, `\04`, `\777`, `\0404`} {
		f.Add(x)
	}
	f.Fuzz(func(t *testing.T, x string) {
		if got := unescape(strings.ReplaceAll(strings.ReplaceAll(x, `\`, `\134`), " ", `\040`)); got != x {
			t.Errorf("%q became %q", x, got)
		}
		_ = unescape(x)
	})
}

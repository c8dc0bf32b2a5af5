package image

import (
	"strings"
	"testing"
)

// Each command says what it is for, has examples, and
// completes its arguments instead of offering files, unless it reads files.
func TestImageCommandsHaveHelp(t *testing.T) {
	for _, c := range Command(nil, nil, nil).Commands() {
		if c.Short == "" || c.Example == "" || strings.HasSuffix(c.Short, ".") {
			t.Errorf("%s: short %q, example %q", c.Name(), c.Short, c.Example)
		}
		for line := range strings.SplitSeq(c.Example, "\n") {
			if !strings.HasPrefix(line, "  ") || !strings.Contains(line, "coracle image ") {
				t.Errorf("%s: example %q", c.Name(), line)
			}
		}
		if c.ValidArgsFunction == nil && !c.DisableFlagParsing && !strings.Contains(c.Use, "DIRECTORY") {
			t.Errorf("%s offers files to be completed", c.Name())
		}
	}
}

package testkit

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// ProgramSize builds the program in the working directory as make does, without cgo and with the
// given build tags, and returns how many bytes it has.
func ProgramSize(t testing.TB, tags ...string) int64 {
	t.Helper()
	out := filepath.Join(t.TempDir(), "program")
	cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-tags", strings.Join(tags, ","),
		"-ldflags", "-s -w -funcalign=16", "-o", out, ".")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if said, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	st, err := os.Stat(out)
	if err != nil {
		t.Fatal(err)
	}
	return st.Size()
}

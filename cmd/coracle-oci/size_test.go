package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestSize builds the program as make does: each start pays for what is in it.
func TestSize(t *testing.T) {
	const most = 8_000_000 // bytes
	out := filepath.Join(t.TempDir(), "coracle-oci")
	cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", out, ".")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if said, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	st, err := os.Stat(out)
	if err != nil {
		t.Fatal(err)
	}
	if st.Size() > most {
		t.Errorf("coracle-oci has %d bytes, at most %d are allowed; what few starts need belongs into its companion", st.Size(), most)
	}
}

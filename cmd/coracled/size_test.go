package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestSize builds the program as make does: most of what an idle daemon has in memory are pages of its file. What makes
// it much larger is a call of a method by its name (text/template, reflect.Value.MethodByName), for which the linker
// keeps all methods; `go build -ldflags=-dumpdep` names it, marked <ReflectMethod>.
func TestSize(t *testing.T) {
	const most = 27_000_000 // bytes
	out := filepath.Join(t.TempDir(), "coracled")
	cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-tags", "nri_no_wasm,grpcnotrace", "-ldflags", "-s -w", "-o", out, ".")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if said, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	st, err := os.Stat(out)
	if err != nil {
		t.Fatal(err)
	}
	if st.Size() > most {
		t.Errorf("coracled has %d bytes, at most %d are allowed", st.Size(), most)
	}
}

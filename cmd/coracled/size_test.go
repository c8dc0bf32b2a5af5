package main

import (
	"testing"

	"github.com/coracle-project/coracle/internal/testkit"
)

// TestSize: most of what an idle daemon has in memory are pages of its file. What makes it much
// larger is a call of a method by its name (text/template, reflect.Value.MethodByName), for which
// the linker keeps all methods; `go build -ldflags=-dumpdep` names it, marked <ReflectMethod>.
func TestSize(t *testing.T) {
	const most = 26_500_000 // bytes
	if size := testkit.ProgramSize(t, "nri_no_wasm", "grpcnotrace"); size > most {
		t.Errorf("coracled has %d bytes, at most %d are allowed", size, most)
	}
}

package main

import (
	"testing"

	"github.com/coracle-project/coracle/internal/testkit"
)

// TestSize: each start pays for what is in the program.
func TestSize(t *testing.T) {
	const most = 8_000_000 // bytes
	if size := testkit.ProgramSize(t); size > most {
		t.Errorf("coracle-oci has %d bytes, at most %d are allowed; what few starts need belongs into its companion", size, most)
	}
}

package testnet

import (
	"fmt"
	"os"
	"testing"
)

// Untested says that a test cannot run on this machine, and where it does. `make test` lists all
// such parts at its end (CORACLE_UNTESTED names the file), so that none is lost silently.
func Untested(t testing.TB, what string) {
	t.Helper()
	t.Log("not tested here:", what)
	path := os.Getenv("CORACLE_UNTESTED")
	if path == "" {
		return
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fprintf(f, "%s: %s\n", t.Name(), what); err != nil {
		t.Error(err)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
}

package networktest

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/coracle-project/coracle/network"
)

func file(t *testing.T) (string, func()) {
	t.Helper()
	f, err := os.CreateTemp(t.TempDir(), "ns")
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	return f.Name(), func() { os.Remove(f.Name()) }
}

func TestFakePassesTheSuite(t *testing.T) {
	Suite(t, func(t *testing.T) Harness {
		f := &Fake{}
		return Harness{Network: f, NewNetNS: file, Leases: func(*testing.T) int { return f.Pods() }}
	})
}

func TestFakeFailsOnDemand(t *testing.T) {
	broken := errors.New("broken")
	f := &Fake{Fail: func(_ context.Context, op, _ string) error {
		if op == "teardown" {
			return nil
		}
		return broken
	}}
	p := network.Pod{ID: "a", NetNS: filepath.Join("/dev", "null")}
	if _, err := f.Setup(t.Context(), p); !errors.Is(err, broken) {
		t.Errorf("Setup: %v", err)
	}
	if err := f.Ready(t.Context()); !errors.Is(err, broken) {
		t.Errorf("Ready: %v", err)
	}
	if err := f.Teardown(t.Context(), p); err != nil {
		t.Errorf("Teardown: %v", err)
	}
}

package cli

import (
	"context"
	"os"
	"path/filepath"
	"testing"
)

// On cgroup v2 the kernel changes files; here the test does.
func TestWatchOOMOnV2(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("memory.events", "low 0\noom 1\noom_kill 1\n")
	write("cgroup.events", "populated 1\nfrozen 0\n")
	events, err := watchOOM(t.Context(), map[string]string{"": dir})
	if err != nil {
		t.Fatal(err)
	}
	write("memory.events", "low 0\noom 3\noom_kill 3\n")
	for range 2 {
		if _, ok := <-events; !ok {
			t.Fatal("the channel is closed though the cgroup has processes")
		}
	}
	write("cgroup.events", "populated 0\nfrozen 0\n")
	if _, ok := <-events; ok {
		t.Error("an event that nothing caused")
	}
}

func TestWatchOOMIsCancelled(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"memory.events", "cgroup.events"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("populated 1\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	events, err := watchOOM(ctx, map[string]string{"": dir})
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	if _, ok := <-events; ok {
		t.Error("an event after the end")
	}
	if _, err := watchOOM(t.Context(), nil); err == nil {
		t.Error("no error without a memory controller")
	}
}

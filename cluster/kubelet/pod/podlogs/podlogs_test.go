package podlogs

import (
	"os"
	"path/filepath"
	"testing"
)

func TestRestarts(t *testing.T) {
	dir := t.TempDir()
	if got := Restarts(dir); got != 0 {
		t.Errorf("an empty directory: %d", got)
	}
	for _, name := range []string{"0.log", "2.log", "1.log", "2.log.20300101", "other"} {
		write(t, dir, name)
	}
	if got := Restarts(dir); got != 3 {
		t.Errorf("got %d", got)
	}
}

func write(t *testing.T, dir, name string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
		t.Fatal(err)
	}
}

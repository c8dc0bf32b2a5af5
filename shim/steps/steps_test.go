package steps

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

func TestWriteRead(t *testing.T) {
	dir := t.TempDir()
	if s, err := Read(dir, "none"); s != nil || err != nil {
		t.Errorf("of no container: %v, %v", s, err)
	}
	if err := Write(dir, "none", nil); err == nil {
		t.Error("written for no container")
	}
	if err := os.Mkdir(filepath.Join(dir, "c"), 0o700); err != nil {
		t.Fatal(err)
	}
	want := []Step{{"plan", time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC), 7 * time.Microsecond}}
	if err := Write(dir, "c", want); err != nil {
		t.Fatal(err)
	}
	if got, err := Read(dir, "c"); err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v", got, err)
	}
	for name, bad := range map[string][]byte{"no JSON": []byte("["), "too long": make([]byte, maxSize+1)} {
		if err := os.WriteFile(filepath.Join(dir, "c", fileName), bad, 0o600); err != nil {
			t.Fatal(err)
		}
		if s, err := Read(dir, "c"); err == nil {
			t.Errorf("%s: %v", name, s)
		}
	}
}

package atomicfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

func TestReplace(t *testing.T) {
	for name, write := range map[string]func(string, []byte, os.FileMode) error{"Write": Write, "WriteSync": WriteSync} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "record.json")
			for _, text := range []string{"first, and longer", "second"} {
				if err := write(path, []byte(text), 0o640); err != nil {
					t.Fatal(err)
				}
				got, err := os.ReadFile(path)
				if err != nil || string(got) != text {
					t.Fatalf("read %q, %v; want %q", got, err, text)
				}
			}
			st, err := os.Stat(path)
			if err != nil || st.Mode().Perm() != 0o640 {
				t.Fatalf("mode %v, %v; want 0640", st.Mode(), err)
			}
			if n := entries(t, filepath.Dir(path)); n != 1 {
				t.Fatalf("%d files in the directory, want only the record", n)
			}
		})
	}
}

func TestFailureLeavesTheOldFileAndNoTemp(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "taken")
	if err := os.Mkdir(path, 0o700); err != nil { // a file cannot replace a directory
		t.Fatal(err)
	}
	if err := Write(path, []byte("x"), 0o600); err == nil {
		t.Fatal("replacing a directory succeeded")
	}
	if n := entries(t, dir); n != 1 {
		t.Fatalf("%d entries left, want 1", n)
	}
}

func TestMissingDirectory(t *testing.T) {
	err := Write(filepath.Join(t.TempDir(), "none", "f"), nil, 0o600)
	if !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("got %v, want ErrNotExist", err)
	}
}

func entries(t *testing.T, dir string) int {
	t.Helper()
	e, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	return len(e)
}

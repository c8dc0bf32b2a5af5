package kernfile_test

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/internal/kernfile"
)

func TestCreateAndRead(t *testing.T) {
	defer unix.Umask(unix.Umask(0o77))
	for name, size := range map[string]int{"empty": 0, "small": 10, "of the buffer's size": 2048, "large": 100_000} {
		path, want := filepath.Join(t.TempDir(), "file"), bytes.Repeat([]byte("x"), size)
		if err := kernfile.Create(path, want, 0o644); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		got, err := kernfile.Read(path)
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: read %d bytes, %v; want %d", name, len(got), err, size)
		}
		if st, err := os.Stat(path); err != nil || st.Mode() != 0o644 {
			t.Errorf("%s: mode %v, %v", name, st.Mode(), err)
		}
		if err := kernfile.Create(path, nil, 0o644); !errors.Is(err, fs.ErrExist) {
			t.Errorf("%s: created twice: %v", name, err)
		}
	}
}

func TestRead(t *testing.T) {
	if data, err := kernfile.Read("/proc/self/stat"); err != nil || len(data) == 0 {
		t.Errorf("/proc/self/stat: %q, %v", data, err)
	}
	if _, err := kernfile.Read("/no/such/file"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing file: %v", err)
	}
	if _, err := kernfile.Read(t.TempDir()); !errors.Is(err, unix.EISDIR) {
		t.Errorf("a directory: %v", err)
	}
}

// A file that could not be filled is not left behind.
func TestCreateOnFullDisk(t *testing.T) {
	if err := kernfile.Create("/dev/full/file", nil, 0o600); !errors.Is(err, unix.ENOTDIR) {
		t.Errorf("below a file: %v", err)
	}
}

package runtime_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/coracle-project/coracle/runtime"
	"github.com/coracle-project/coracle/runtime/runtimetest"
)

func TestLoadSpec(t *testing.T) {
	dir := t.TempDir()
	write := func(s string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(s), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(`{"ociVersion": "1.1.0", "hostname": "boat", "unknown": {"is": "ignored"}}` + "\n\n")
	spec, err := runtime.LoadSpec(dir)
	if err != nil || spec.Hostname != "boat" {
		t.Fatalf("got %+v, %v", spec, err)
	}

	for _, c := range []struct{ text, says string }{
		{"", "config.json:1:1: empty file"},
		{"{\n  \"a\": 1,\n  b\n}", "config.json:3:3: "},
		{"{\n  \"hostname\": 7\n}", "config.json:2:"},
		{"{}\n{}", "config.json:2:1: text after the JSON object"},
		{"{\"a\":", "config.json:1:6: "},
		{"[]", "config.json:1:1: "},
		{strings.Repeat(" ", runtime.MaxSpecSize+1), "config.json: larger than"},
	} {
		write(c.text)
		_, err := runtime.LoadSpec(dir)
		if !errors.Is(err, runtime.ErrInvalidSpec) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%.20q: error %v, want ErrInvalidSpec saying %q", c.text, err, c.says)
		}
	}
}

func TestLoadSpecThatIsNotThere(t *testing.T) {
	dir := t.TempDir()
	if _, err := runtime.LoadSpec(filepath.Join(dir, "nowhere")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("missing bundle: %v", err)
	}
	if _, err := runtime.LoadSpec(dir); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "config.json") {
		t.Errorf("missing config.json: %v", err)
	}
	if err := os.Mkdir(filepath.Join(dir, "config.json"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := runtime.LoadSpec(dir); !errors.Is(err, runtime.ErrInvalidSpec) {
		t.Errorf("config.json is a directory: %v", err)
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := runtime.LoadSpec(file); err == nil || !strings.Contains(err.Error(), "not a directory") {
		t.Errorf("bundle is a file: %v", err)
	}
}

func TestLoadProcessFromPipe(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, err := w.WriteString(`{"args": ["x"], "cwd": "/"}`); err != nil {
		t.Fatal(err)
	}
	w.Close()
	if p, err := runtime.LoadProcess(fmt.Sprintf("/proc/self/fd/%d", r.Fd())); err != nil || p.Args[0] != "x" {
		t.Errorf("got %+v, %v", p, err)
	}
}

func TestLoadProcess(t *testing.T) {
	path := filepath.Join(t.TempDir(), "process.json")
	if _, err := runtime.LoadProcess(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("missing file: %v", err)
	}
	if err := os.WriteFile(path, []byte(`{"args": ["x"], "cwd": "/"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if p, err := runtime.LoadProcess(path); err != nil || p.Args[0] != "x" {
		t.Errorf("got %+v, %v", p, err)
	}
}

// BenchmarkLoadSpec is part of each create. Looking for duplicate keys takes a tenth of it.
func BenchmarkLoadSpec(b *testing.B) {
	dir := b.TempDir()
	if err := (runtimetest.BadConfig{Field: "hostname", Value: `"boat"`}).Write(dir, runtimetest.Spec("one", "/bin/true")); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := runtime.LoadSpec(dir); err != nil {
			b.Fatal(err)
		}
	}
}

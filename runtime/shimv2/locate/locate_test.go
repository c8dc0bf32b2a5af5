package locate

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestProgram(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir)
	shim := filepath.Join(dir, "containerd-shim-runc-v2")
	if err := os.WriteFile(shim, nil, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"io.containerd.runc.v2": shim,
		shim:                    shim,
		"io.containerd.kata.v2": `shim "io.containerd.kata.v2": exec: "containerd-shim-kata-v2": executable file not found in $PATH`,
		"runc":                  `shim "runc" is neither an absolute path nor a name such as io.containerd.runc.v2`,
		"io.x/../runc.v2":       "is neither an absolute path nor a name",
		"/nowhere/shim":         "no such file or directory",
	} {
		got, err := Program(name)
		if got != want && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %q, %v, want %q", name, got, err, want)
		}
	}
}

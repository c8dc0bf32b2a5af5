// Package volumetest is what tests of volumes share.
package volumetest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// InMountNamespace runs the tests in a mount namespace of their own, so that they need root and
// leave nothing mounted, whatever happens to them. It does not return.
func InMountNamespace(m *testing.M) {
	const inside = "VOLUME_TEST_NAMESPACE"
	if os.Getenv(inside) != "" {
		os.Exit(m.Run())
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), inside+"=1")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		os.Exit(exit.ExitCode())
	case err != nil:
		fmt.Fprintln(os.Stderr, "a private mount namespace is needed, hence root:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// Write writes a file.
func Write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// GroupOf returns the group and the mode of a file.
func GroupOf(t *testing.T, path string) (gid uint32, mode os.FileMode) {
	t.Helper()
	info, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Sys().(*syscall.Stat_t).Gid, info.Mode()
}

// Read returns the files that a user of the volume sees, by their paths.
func Read(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	var walk func(string)
	walk = func(at string) {
		entries, err := os.ReadDir(filepath.Join(dir, at))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			name := filepath.Join(at, e.Name())
			info, err := os.Stat(filepath.Join(dir, name))
			switch {
			case strings.HasPrefix(name, ".."):
			case err != nil:
				t.Fatal(err)
			case info.IsDir():
				walk(name)
			default:
				data, err := os.ReadFile(filepath.Join(dir, name))
				if err != nil {
					t.Fatal(err)
				}
				files[name] = string(data)
			}
		}
	}
	walk(".")
	return files
}

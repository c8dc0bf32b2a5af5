package integration

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/coracle-project/coracle/internal/testkit"
)

// coracleOCI runs the OCI command line.
func coracleOCI(t *testing.T, args ...string) (string, error) {
	t.Helper()
	root := filepath.Join(os.TempDir(), "coracle-oci-test")
	t.Cleanup(func() { _ = os.RemoveAll(root) })
	out, err := exec.Command(testkit.Bin(t, "coracle-oci"), append([]string{"--root", root}, args...)...).CombinedOutput()
	return string(out), err
}

// A bundle that is missing or broken: one sentence, no container.
func TestBadBundle(t *testing.T) {
	for _, tc := range []struct{ name, config string }{
		{"no bundle", ""},
		{"not JSON", "{"},
		{"empty", "{}"},
		{"no arguments", `{"ociVersion": "1.2.0", "root": {"path": "rootfs"}, "process": {"cwd": "/", "args": []}}`},
		{"relative working directory", `{"ociVersion": "1.2.0", "root": {"path": "rootfs"}, "process": {"cwd": "tmp", "args": ["sh"]}}`},
		{"no root", `{"ociVersion": "1.2.0", "process": {"cwd": "/", "args": ["sh"]}}`},
		{"version from the future", `{"ociVersion": "9.0.0", "root": {"path": "rootfs"}, "process": {"cwd": "/", "args": ["sh"]}}`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bundle := filepath.Join(t.TempDir(), "bundle")
			if tc.config != "" {
				if err := os.MkdirAll(filepath.Join(bundle, "rootfs"), 0o755); err != nil {
					t.Fatal(err)
				}
				writeFile(t, filepath.Join(bundle, "config.json"), tc.config)
			}
			out, err := coracleOCI(t, "create", "--bundle", bundle, "bad")
			if err == nil {
				t.Errorf("create succeeded: %s", out)
			}
			if n := strings.Count(strings.TrimSpace(out), "\n"); n > 1 || len(out) < 10 {
				t.Errorf("message %q", out)
			}
			if out, err := coracleOCI(t, "state", "bad"); err == nil {
				t.Errorf("a container is there: %s", out)
			}
		})
	}
}

package engine

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/coracle-project/coracle/internal/testkit"
	"github.com/coracle-project/coracle/runtime"
	"github.com/coracle-project/coracle/runtime/runtimetest"
)

// TestLabelOfFileSystemWithoutLabels: the label of an mqueue is an attribute of its directory. To
// set one where there are none, as on a kernel without SELinux, is EOPNOTSUPP.
func TestLabelOfFileSystemWithoutLabels(t *testing.T) {
	if seLinux() {
		testkit.Untested(t, "an mqueue that takes no label: SELinux is enabled")
		return
	}
	before := seLinux
	seLinux = func() bool { return true }
	defer func() { seLinux = before }()
	e, err := New(Config{StateDir: filepath.Join(t.TempDir(), "state")})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	id := fmt.Sprintf("label-%d", os.Getpid())
	spec := runtimetest.Spec(id, "/bin/true")
	spec.Linux.MountLabel = "system_u:object_r:container_file_t:s0"
	spec.Mounts = []specs.Mount{{Destination: "/dev/mqueue", Type: "mqueue", Source: "mqueue"}}
	c, err := e.Create(t.Context(), id, spec, runtime.CreateOptions{Bundle: runtimetest.Bundle(t)})
	if err != nil {
		t.Fatal(err)
	}
	init := c.Pid()
	if err := c.Delete(t.Context(), runtime.DeleteOptions{Force: true}); err != nil {
		t.Error(err)
	}
	_, _ = runtimetest.Exit(init)
}

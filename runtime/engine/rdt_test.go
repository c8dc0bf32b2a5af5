package engine_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/runtime"
	"github.com/coracle-project/coracle/runtime/engine"
	"github.com/coracle-project/coracle/runtime/runtimetest"
)

// A container's processes are in its class of service. A directory stands in for the resctrl file
// system, in which the kernel would take the last number for one of many.
func TestServiceClass(t *testing.T) {
	root := t.TempDir()
	e, err := engine.New(engine.Config{StateDir: filepath.Join(t.TempDir(), "state"), Resctrl: root})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	id := fmt.Sprintf("rdt-%d", os.Getpid())
	spec := runtimetest.Spec(id, "/bin/sleep", "1000")
	spec.Linux.IntelRdt = &specs.LinuxIntelRdt{L3CacheSchema: "L3:0=f"}
	c, err := e.Create(t.Context(), id, spec, runtime.CreateOptions{Bundle: runtimetest.Bundle(t)})
	if err != nil {
		t.Fatal(err)
	}
	pid := c.Pid()
	says := func(file, want string) {
		t.Helper()
		if got, err := os.ReadFile(filepath.Join(root, id, file)); err != nil || strings.TrimSpace(string(got)) != want {
			t.Errorf("%s is %q, want %q; %v", file, got, want, err)
		}
	}
	says("tasks", strconv.Itoa(pid))
	says("schemata", "L3:0=f")
	if err := c.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	child, err := c.Exec(t.Context(), runtimetest.Spec(id, "/bin/true").Process, runtime.ExecOptions{})
	if err != nil {
		t.Fatal(err)
	}
	await(t, child)
	if got, err := os.ReadFile(filepath.Join(root, id, "tasks")); err != nil || string(got) == strconv.Itoa(pid) {
		t.Errorf("tasks after exec: %q, %v", got, err)
	}
	if err := c.(runtime.RdtUpdater).UpdateRdt(t.Context(), "", "MB:0=20"); err != nil {
		t.Error(err)
	}
	says("schemata", "MB:0=20")
	for _, f := range []string{"tasks", "schemata"} { // which keep no class from being removed
		if err := os.Remove(filepath.Join(root, id, f)); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Delete(t.Context(), runtime.DeleteOptions{Force: true}); err != nil {
		t.Error(err)
	}
	await(t, pid)
	if _, err := os.Stat(filepath.Join(root, id)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the class is left: %v", err)
	}
}

func TestServiceClassIsMissing(t *testing.T) {
	data, err := os.ReadFile("/proc/filesystems")
	if err != nil {
		t.Fatal(err)
	}
	e := newEngine(t, filepath.Join(t.TempDir(), "state"))
	defer shut(t, e)
	id := fmt.Sprintf("rdt-%d", os.Getpid())
	spec := runtimetest.Spec(id, "/bin/true")
	spec.Linux.IntelRdt = &specs.LinuxIntelRdt{ClosID: "no-such-class"}
	want := "no resctrl file system is mounted"
	var st unix.Statfs_t
	if slices.Contains(strings.Fields(string(data)), "resctrl") && unix.Statfs("/sys/fs/resctrl", &st) == nil &&
		st.Type == unix.RDTGROUP_SUPER_MAGIC {
		want = "there is no such class"
	}
	if _, err := e.Create(t.Context(), id, spec, runtime.CreateOptions{Bundle: runtimetest.Bundle(t)}); err == nil ||
		!strings.Contains(err.Error(), want) {
		t.Errorf("error %v, want one with %q", err, want)
	}
}

package engine_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/runtime"
	"github.com/coracle-project/coracle/runtime/engine"
	"github.com/coracle-project/coracle/runtime/runtimetest"
)

// A Start may be killed after it has released init, before or after init has seen that. The
// container then counts as running, and not as waiting. Reading the state of a waiting container
// changes nothing.
func TestStateWhenStartWasKilled(t *testing.T) {
	bundle, state := runtimetest.Bundle(t), filepath.Join(t.TempDir(), "state")
	e, err := engine.New(engine.Config{StateDir: state})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	for i, stopped := range []bool{false, true} {
		id := fmt.Sprintf("released-%d-%d", os.Getpid(), i)
		c, err := e.Create(t.Context(), id, runtimetest.Spec(id, "/bin/sh", "-c", "exit 7"), runtime.CreateOptions{Bundle: bundle})
		if err != nil {
			t.Fatal(err)
		}
		want := func(status specs.ContainerState) {
			t.Helper()
			if s, err := c.State(t.Context()); err != nil || s.Status != status {
				t.Errorf("init stopped %v: state %q, %v; want %q", stopped, s.Status, err, status)
			}
		}
		pid := c.Pid()
		want(specs.StateCreated)
		gate := filepath.Join(state, id, "exec.fifo")
		if stopped {
			// The process does not read what Start writes.
			if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			if _, err := unix.Wait4(pid, nil, unix.WUNTRACED|unix.WALL, nil); err != nil {
				t.Fatal(err)
			}
			f, err := os.OpenFile(gate, os.O_WRONLY, 0)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := f.Write([]byte{1}); err != nil {
				t.Fatal(err)
			}
			f.Close()
			want(specs.StateRunning)
			if _, err := os.Lstat(gate); !os.IsNotExist(err) {
				t.Errorf("the gate is left: %v", err)
			}
			if err := unix.Kill(pid, unix.SIGCONT); err != nil {
				t.Fatal(err)
			}
		} else if err := c.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		if code, err := runtimetest.Exit(pid); err != nil || code != 7 {
			t.Errorf("it ended with %d, %v, want 7", code, err)
		}
		if err := c.Delete(t.Context(), runtime.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	}
}

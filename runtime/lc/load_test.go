package lc_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/runtime"
	"github.com/coracle-project/coracle/runtime/runtimetest"
)

// A container made by a process that has ended is driven by another.
func TestLoadFromAnotherProcess(t *testing.T) {
	adoptOrphans(t)
	bundle, state, id := runtimetest.Bundle(t), t.TempDir(), fmt.Sprintf("load-%d", os.Getpid())
	if err := helperCommand(t, state, bundle, id, "").Run(); err != nil {
		t.Fatal(err)
	}
	e := newEngine(t, state)
	c, err := e.Load(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	wantStatus(t, c, specs.StateCreated)
	pid := c.Pid()
	if err := c.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantStatus(t, c, specs.StateRunning)
	child, err := c.Exec(t.Context(), runtimetest.Spec("", "/bin/true").Process, runtime.ExecOptions{})
	if err != nil {
		t.Fatal(err)
	}
	reap(t, child)
	if err := c.Signal(t.Context(), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	reap(t, pid)
	wantStatus(t, c, specs.StateStopped)
	if err := c.Delete(t.Context(), runtime.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	nothingLeft(t, state, id)
}

// A creator that is killed half way leaves a container that counts as stopped and
// can be deleted.
func TestDeleteAfterCreatorWasKilled(t *testing.T) {
	adoptOrphans(t)
	bundle, state, id := runtimetest.Bundle(t), t.TempDir(), fmt.Sprintf("killed-%d", os.Getpid())
	if err := helperCommand(t, state, bundle, id, "kill -9 $PPID").Run(); err == nil {
		t.Fatal("the helper was not killed")
	}
	e := newEngine(t, state)
	ids, err := e.List(t.Context())
	if err != nil || len(ids) != 1 {
		t.Fatalf("list is %v, %v", ids, err)
	}
	c, err := e.Load(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	wantStatus(t, c, specs.StateStopped)
	if err := c.Start(t.Context()); !errors.Is(err, runtime.ErrNotRunning) {
		t.Errorf("start: %v", err)
	}
	if err := c.Delete(t.Context(), runtime.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	nothingLeft(t, state, id)
	for { // what the killed helper had started is ours now, and dead
		var status unix.WaitStatus
		if _, err := unix.Wait4(-1, &status, 0, nil); errors.Is(err, unix.ECHILD) {
			break
		}
	}
}

func adoptOrphans(t *testing.T) {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0) })
}

func wantStatus(t *testing.T, c runtime.Container, want specs.ContainerState) {
	t.Helper()
	s, err := c.State(t.Context())
	if err != nil || s.Status != want {
		t.Fatalf("status is %q, %v; want %q", s.Status, err, want)
	}
}

func nothingLeft(t *testing.T, state, id string) {
	t.Helper()
	if left, _ := filepath.Glob(filepath.Join(state, "*")); len(left) > 0 {
		t.Errorf("left in the state directory: %v", left)
	}
	if left, _ := filepath.Glob("/sys/fs/cgroup/*" + runtimetest.CgroupParent + "/" + id); len(left) > 0 {
		t.Errorf("left cgroups: %v", left)
	}
}

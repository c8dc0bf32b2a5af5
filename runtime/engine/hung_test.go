package engine_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/runtime"
	"github.com/coracle-project/coracle/runtime/engine"
	"github.com/coracle-project/coracle/runtime/runtimetest"
	"github.com/coracle-project/coracle/runtime/zygote"
)

// impatient is an engine that soon considers an idle starter hung.
func impatient(t *testing.T) (*engine.Engine, string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "state")
	e, err := engine.New(engine.Config{StateDir: dir, Patience: zygote.Patience{Idle: 100 * time.Millisecond, Busy: time.Minute}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Close() })
	return e, dir
}

// A starter that hangs is killed and replaced. What it was about to create fails and leaves nothing
// behind; what it has created keeps running.
func TestStarterHangs(t *testing.T) {
	bundle, ctx := runtimetest.Bundle(t), t.Context()
	e, dir := impatient(t)
	id := func(i int) string { return fmt.Sprintf("hung-%d-%d", os.Getpid(), i) }
	create := func(i int) (runtime.Container, error) {
		return e.Create(ctx, id(i), runtimetest.Spec(id(i), "/bin/sleep", "1000"), runtime.CreateOptions{Bundle: bundle})
	}
	c, err := create(0)
	if err != nil {
		t.Fatal(err)
	}
	pid := c.Pid()
	if err := c.Start(ctx); err != nil {
		t.Fatal(err)
	}
	inits := []int{pid} // a new container also has the starter's name until it executes its program
	stop := func() int {
		t.Helper()
		running := slices.DeleteFunc(starters(t), func(p int) bool { return slices.Contains(inits, p) })
		if len(running) != 1 {
			t.Fatalf("starters %v, want one", running)
		}
		if err := unix.Kill(running[0], unix.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		return running[0]
	}
	hung := stop()
	_, err = create(1)
	if want := fmt.Sprintf("process %d, in state T", hung); !errors.Is(err, zygote.ErrLost) || !strings.Contains(err.Error(), want) {
		t.Errorf("create by a starter that hangs: %v, want one with %q", err, want)
	}
	again, err := create(1)
	if err != nil {
		t.Fatalf("create by its successor: %v", err)
	}
	inits = append(inits, again.Pid())
	stop()
	child := runtimetest.Spec(id(0), "/bin/true").Process
	if _, err := c.Exec(ctx, child, runtime.ExecOptions{}); !errors.Is(err, zygote.ErrLost) {
		t.Errorf("exec by a starter that hangs: %v", err)
	}
	done, err := c.Exec(ctx, child, runtime.ExecOptions{})
	if err != nil {
		t.Fatalf("exec by its successor: %v", err)
	}
	await(t, done)
	for _, made := range []runtime.Container{c, again} {
		pid := made.Pid()
		if pid == 0 {
			t.Fatalf("container %s has ended", made.ID())
		}
		if err := made.Delete(ctx, runtime.DeleteOptions{Force: true}); err != nil {
			t.Error(err)
		}
		await(t, pid)
	}
	nothingLeft(t, e, dir, id(1))
}

// A process that is stopped while it creates its container must not be awaited forever.
func TestProcessIsStoppedWhileItMakesTheContainer(t *testing.T) {
	bundle := runtimetest.Bundle(t)
	e, dir := impatient(t)
	id := fmt.Sprintf("stopped-%d", os.Getpid())
	spec := runtimetest.Spec(id, "/bin/true")
	spec.Hooks = &specs.Hooks{CreateRuntime: []specs.Hook{{
		Path: "/bin/sh", Args: []string{"sh", "-c", `kill -STOP $(sed 's/.*"pid":\([0-9]*\).*/\1/')`}, Env: []string{"PATH=/usr/bin:/bin"},
	}}}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err := e.Create(ctx, id, spec, runtime.CreateOptions{Bundle: bundle})
	if err == nil || !strings.Contains(err.Error(), "in state T") || !strings.Contains(err.Error(), "has been stopped") {
		t.Errorf("create: %v", err)
	}
	nothingLeft(t, e, dir, id)
}

func nothingLeft(t *testing.T, e *engine.Engine, stateDir, id string) {
	t.Helper()
	if err := e.Close(); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(stateDir); err != nil || len(left) > 0 {
		t.Errorf("left in the state directory: %v, %v", left, err)
	}
	for _, pattern := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/*"} {
		if left, _ := filepath.Glob(filepath.Join(pattern, runtimetest.CgroupParent, id)); len(left) > 0 {
			t.Errorf("cgroups are left: %v", left)
		}
	}
	if pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil); !errors.Is(err, unix.ECHILD) {
		t.Errorf("a child is left: %d, %v", pid, err)
	}
}

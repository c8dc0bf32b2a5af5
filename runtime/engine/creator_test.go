package engine_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/runtime"
	"github.com/coracle-project/coracle/runtime/engine"
	"github.com/coracle-project/coracle/runtime/runtimetest"
)

// helperArg makes the test binary a second process that uses an engine.
const helperArg = "engine-helper"

// helper creates a container and ends: args are state directory, bundle, id and the shell
// script of a hook, which may be empty, and which hook that is.
func helper(args []string) int {
	stateDir, bundle, id, script, kind := args[0], args[1], args[2], args[3], args[4]
	e, err := engine.New(engine.Config{StateDir: stateDir})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	spec := runtimetest.Spec(id, "/bin/sleep", "1000")
	if hooks := []specs.Hook{{Path: "/bin/sh", Args: []string{"sh", "-c", script}}}; kind == "createContainer" {
		spec.Hooks = &specs.Hooks{CreateContainer: hooks}
	} else if script != "" {
		spec.Hooks = &specs.Hooks{CreateRuntime: hooks}
	}
	if _, err := e.Create(context.Background(), id, spec, runtime.CreateOptions{Bundle: bundle}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func helperCommand(t *testing.T, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", append([]string{helperArg}, args...)...)
	cmd.Stderr = os.Stderr
	return cmd
}

// A container made by a process that has ended is driven by another.
func TestLoadFromAnotherProcess(t *testing.T) {
	adoptOrphans(t)
	bundle, state, id := runtimetest.Bundle(t), t.TempDir(), fmt.Sprintf("load-%d", os.Getpid())
	if err := helperCommand(t, state, bundle, id, "", "").Run(); err != nil {
		t.Fatal(err)
	}
	e := newEngine(t, state)
	c, err := e.Load(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	pid := c.Pid()
	if err := c.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	child, err := c.Exec(t.Context(), runtimetest.Spec("", "/bin/true").Process, runtime.ExecOptions{})
	if err != nil {
		t.Fatal(err)
	}
	await(t, child)
	if err := c.Signal(t.Context(), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	await(t, pid)
	shut(t, e)
	remove(t, state, id)
}

// A creator that is killed at any moment leaves what can be deleted, and nothing that runs.
func TestCreatorIsKilled(t *testing.T) {
	adoptOrphans(t)
	bundle := runtimetest.Bundle(t)
	try := func(n int, script, kind string, wait time.Duration) {
		state, id := t.TempDir(), fmt.Sprintf("killed-%d-%d", os.Getpid(), n)
		cmd := helperCommand(t, state, bundle, id, script, kind)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if wait > 0 {
			time.AfterFunc(wait, func() { _ = cmd.Process.Kill() })
		}
		err := cmd.Wait()
		if wait == 0 && err == nil {
			t.Fatal("the helper was not killed")
		}
		remove(t, state, id)
	}
	try(0, "kill -9 $PPID", "createRuntime", 0)
	seed := uint64(os.Getpid())
	r := rand.New(rand.NewPCG(seed, 0))
	t.Logf("seed %d", seed)
	const longest = 25 * time.Millisecond // what a helper needs when nothing else runs
	for n := range 100 {
		try(n+1, "true", []string{"createRuntime", "createContainer"}[n%2], 1+time.Duration(r.Int64N(int64(longest))))
	}
}

// remove deletes a container, if there is one, and sees that nothing is left.
func remove(t *testing.T, state, id string) {
	t.Helper()
	e := newEngine(t, state)
	// What the helper had started is ours now. It ends by itself or is killed by Delete: this
	// would wait forever for one that runs on. It goes on next to Delete, for the kernel keeps the
	// init of a pid namespace until all others in it are reaped.
	reaped := make(chan struct{})
	go func() {
		defer close(reaped)
		for {
			if _, err := unix.Wait4(-1, nil, 0, nil); errors.Is(err, unix.ECHILD) {
				return
			}
		}
	}()
	if c, err := e.Load(t.Context(), id); err == nil {
		if err := c.Delete(t.Context(), runtime.DeleteOptions{Force: true}); err != nil {
			t.Fatal(err)
		}
	} else if !errors.Is(err, runtime.ErrNotFound) {
		t.Fatal(err)
	}
	<-reaped
	if left, _ := filepath.Glob(filepath.Join(state, "[^~]*")); len(left) > 0 {
		t.Errorf("left in the state directory: %v", left)
	}
	if left, _ := filepath.Glob("/sys/fs/cgroup/*" + runtimetest.CgroupParent + "/" + id); len(left) > 0 {
		t.Errorf("left cgroups: %v", left)
	}
}

// shut ends an engine's starter, which is a child of this process.
func shut(t *testing.T, e runtime.Engine) {
	t.Helper()
	if err := e.(*engine.Engine).Close(); err != nil {
		t.Fatal(err)
	}
}

func adoptOrphans(t *testing.T) {
	t.Helper()
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0) })
}

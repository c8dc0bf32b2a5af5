package engine_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/runtime"
	"github.com/coracle-project/coracle/runtime/engine"
	"github.com/coracle-project/coracle/runtime/internal/base"
	"github.com/coracle-project/coracle/runtime/plan"
	"github.com/coracle-project/coracle/runtime/runtimetest"
)

// starters are this process's children that start containers.
func starters(t *testing.T) []int {
	t.Helper()
	var out []int
	files, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			continue // it has ended
		}
		name, rest, _ := strings.Cut(string(data[bytes.IndexByte(data, '(')+1:]), ") ")
		fields := strings.Fields(rest)
		if name == plan.ZygoteName && fields[1] == strconv.Itoa(os.Getpid()) && fields[0] != "Z" {
			pid, _ := strconv.Atoi(strings.Split(f, "/")[2])
			out = append(out, pid)
		}
	}
	return out
}

// A starter that is killed between two containers is replaced, and those that it started live.
func TestStarterIsKilled(t *testing.T) {
	bundle, ctx := runtimetest.Bundle(t), context.Background()
	e, err := engine.New(engine.Config{StateDir: filepath.Join(t.TempDir(), "state")})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	var (
		made  []runtime.Container
		inits []int
	)
	for i := range 4 {
		id := fmt.Sprintf("starter-%d-%d", os.Getpid(), i)
		c, err := e.Create(ctx, id, runtimetest.Spec(id, "/bin/sleep", "1000"), runtime.CreateOptions{Bundle: bundle})
		if err != nil {
			t.Fatal(err)
		}
		made = append(made, c)
		// A container is a starter by name, too, until it executes its program.
		inits = append(inits, c.Pid())
		for _, pid := range starters(t) {
			if !slices.Contains(inits, pid) {
				kill(t, pid)
			}
		}
		if err := c.Start(ctx); err != nil {
			t.Fatal(err)
		}
		child, err := c.Exec(ctx, runtimetest.Spec(id, "/bin/true").Process, runtime.ExecOptions{})
		if err != nil {
			t.Fatal(err)
		}
		await(t, child)
	}
	for _, c := range made {
		pid := c.Pid()
		if pid == 0 {
			t.Fatalf("container %s has ended", c.ID())
		}
		if err := c.Delete(ctx, runtime.DeleteOptions{Force: true}); err != nil {
			t.Fatal(err)
		}
		await(t, pid)
	}
}

// Regression: a killed starter was a zombie until the next container was started. No starter is
// started in its place before that.
func TestKilledStarterIsReaped(t *testing.T) {
	e, err := engine.New(engine.Config{StateDir: filepath.Join(t.TempDir(), "state")})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	for range 3 {
		if err := e.Warm(); err != nil {
			t.Fatal(err)
		}
		before := open(t)
		var pids []int
		within(t, "the starter has its name", func() bool { pids = starters(t); return len(pids) > 0 })
		if len(pids) != 1 {
			t.Fatalf("starters are %v", pids)
		}
		kill(t, pids[0])
		within(t, "the starter is reaped", func() bool { return unix.Kill(pids[0], 0) != nil })
		if pids := starters(t); len(pids) != 0 {
			t.Errorf("starters %v have been started for nothing", pids)
		}
		if err := e.Warm(); err != nil {
			t.Fatal(err)
		}
		within(t, "its descriptors are closed", func() bool { return open(t) <= before })
	}
}

// within polls for a condition that has no event.
func within(t *testing.T, what string, so func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for deadline := time.After(time.Minute); !so(); {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("not within a minute: %s", what)
		}
	}
}

// Nothing is left open, whether a container could be made or not.
func TestDescriptorsOfTheEngine(t *testing.T) {
	bundle, ctx := runtimetest.Bundle(t), context.Background()
	e, err := engine.New(engine.Config{StateDir: filepath.Join(t.TempDir(), "state")})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	try := func(i int) {
		id := fmt.Sprintf("fds-%d-%d", os.Getpid(), i)
		spec := runtimetest.Spec(id, "/bin/sleep", "1000")
		switch i % 5 {
		case 1:
			spec.Process.Args[0] = "/no/such"
		case 2:
			spec.Process.Cwd = "/bin/busybox"
		case 3:
			spec.Mounts[1].Type = "nonsense"
		case 4:
			spec.Linux.Sysctl = map[string]string{"net.nonsense": "1"}
		}
		c, err := e.Create(ctx, id, spec, runtime.CreateOptions{Bundle: bundle})
		if (err == nil) != (i%5 == 0) {
			t.Fatalf("create %d: %v", i, err)
		}
		if err != nil {
			return
		}
		pid := c.Pid()
		if err := c.Start(ctx); err != nil {
			t.Fatal(err)
		}
		p := runtimetest.Spec(id, "/no/such").Process
		if _, err := c.Exec(ctx, p, runtime.ExecOptions{}); err == nil {
			t.Fatal("exec succeeded")
		}
		cancelled, cancel := context.WithCancel(ctx)
		cancel()
		if _, err := c.Exec(cancelled, p, runtime.ExecOptions{}); !errors.Is(err, context.Canceled) {
			t.Fatalf("exec: %v, want %v", err, context.Canceled)
		}
		if err := c.Delete(ctx, runtime.DeleteOptions{Force: true}); err != nil {
			t.Fatal(err)
		}
		await(t, pid)
	}
	for i := range 5 {
		try(i)
	}
	before := open(t)
	for i := range 20 {
		try(i)
	}
	if after := open(t); after > before {
		t.Errorf("%d descriptors are open, before it were %d", after, before)
	}
	var ws unix.WaitStatus
	if pid, err := unix.Wait4(-1, &ws, unix.WNOHANG, nil); pid != 0 || err != nil {
		t.Errorf("a dead child is left: %d, %v", pid, err)
	}
}

// kill kills a process and waits until it is dead.
func kill(t *testing.T, pid int) {
	t.Helper()
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := base.AwaitExits(ctx, []int{fd}); err != nil {
		t.Fatalf("wait for process %d: %v", pid, err)
	}
}

func open(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

func await(t *testing.T, pid int) {
	t.Helper()
	if _, err := runtimetest.Exit(pid); err != nil {
		t.Fatal(err)
	}
}

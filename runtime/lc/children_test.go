package lc_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/runtime"
	"github.com/coracle-project/coracle/runtime/runtimetest"
)

// A start that is cut off between libcontainer's stages leaves no zombie, and does not
// take from their callers those that were started before.
func TestFailedStartLeavesNoChild(t *testing.T) {
	state := filepath.Join(t.TempDir(), "state")
	e := newEngine(t, state)
	bundle := runtimetest.Bundle(t)
	other := fmt.Sprintf("other-%d", os.Getpid())
	c, err := e.Create(t.Context(), other, runtimetest.Spec(other, "/bin/sh"), runtime.CreateOptions{Bundle: bundle})
	if err != nil {
		t.Fatal(err)
	}
	init := c.Pid()

	// No one can be forked into a PID namespace whose init has ended: stage 1 fails, when
	// stage 0 has told no one of it yet.
	id := fmt.Sprintf("cut-%d", os.Getpid())
	spec := runtimetest.Spec(id, "/bin/true")
	for i := range spec.Linux.Namespaces {
		if ns := &spec.Linux.Namespaces[i]; ns.Type == specs.PIDNamespace {
			ns.Path = deadPIDNamespace(t)
		}
	}
	if _, err := e.Create(t.Context(), id, spec, runtime.CreateOptions{Bundle: bundle}); err == nil {
		t.Fatal("created in a dead PID namespace")
	}
	if left := children(t); len(left) != 1 || left[0] != init {
		t.Errorf("children are %v, want init %d alone", left, init)
	}

	if err := c.Delete(t.Context(), runtime.DeleteOptions{Force: true}); err != nil {
		t.Error(err)
	}
	reap(t, init)
	nothingLeft(t, state, id)
}

// children are the processes that this one is the parent of, zombies too.
func children(t *testing.T) []int {
	t.Helper()
	var found []int
	stats, err := filepath.Glob("/proc/[1-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range stats {
		raw, err := os.ReadFile(path)
		if err != nil {
			continue // ended meanwhile
		}
		var state string
		var parent int
		if _, err := fmt.Sscan(string(raw[bytes.LastIndexByte(raw, ')')+1:]), &state, &parent); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path))); err == nil && parent == os.Getpid() {
			found = append(found, pid)
		}
	}
	return found
}

// deadPIDNamespace is a path at which a PID namespace is bound whose init has ended.
func deadPIDNamespace(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "pid")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "/bin/cat")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	err = unix.Mount(fmt.Sprintf("/proc/%d/ns/pid", cmd.Process.Pid), path, "", unix.MS_BIND, "")
	if err != nil {
		t.Error(err)
	} else {
		t.Cleanup(func() {
			if err := unix.Unmount(path, 0); err != nil {
				t.Error(err)
			}
		})
	}
	if err := errors.Join(stdin.Close(), cmd.Wait()); err != nil {
		t.Fatal(err)
	}
	return path
}

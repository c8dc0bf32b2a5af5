package engine_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/coracle-project/coracle/runtime"
	"github.com/coracle-project/coracle/runtime/engine"
	"github.com/coracle-project/coracle/runtime/runtimetest"
)

// runnerArg makes the test binary a process that runs one container to its end, in whatever
// surroundings and as whatever user a test has started it.
const runnerArg = "engine-runner"

// order is what a runner does.
type order struct {
	State, Bundle, ID string
	Spec              *specs.Spec
	NoPivot           bool
	SystemdCgroup     bool
	// Bound binds the runner to the first of its CPUs.
	Bound bool
	// Exec runs in the container while init waits for the end of its standard input.
	Exec *specs.Process
	// Limits are set before.
	Limits *specs.LinuxResources
}

// run starts a runner by a command that has the rest of its arguments, and returns what the
// container's processes and the engine say.
func (o order) run(t *testing.T, prefix ...string) (string, error) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return said(exec.CommandContext(t.Context(), "env", append(prefix, exe, runnerArg, o.write(t))...))
}

// runAs starts a runner as another user, or in a user namespace.
func (o order) runAs(t *testing.T, attr *syscall.SysProcAttr, env ...string) (string, error) {
	t.Helper()
	// By this name the user need not reach it by its path.
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", runnerArg, o.write(t))
	cmd.SysProcAttr, cmd.Env = attr, append(os.Environ(), env...)
	return said(cmd)
}

func said(cmd *exec.Cmd) (string, error) {
	out, err := cmd.CombinedOutput()
	return string(bytes.TrimSpace(out)), err
}

// write writes the order to a file that everybody can read.
func (o order) write(t *testing.T) string {
	t.Helper()
	data, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(filepath.Dir(o.State), "order.json")
	if err := os.WriteFile(file, data, 0o644); err != nil {
		t.Fatal(err)
	}
	return file
}

func runner(file string) int {
	data, err := os.ReadFile(file)
	var o order
	if err == nil {
		err = json.Unmarshal(data, &o)
	}
	status := 0
	if err == nil {
		status, err = o.carryOut()
	}
	if err != nil {
		fmt.Println("error:", err)
		return 1
	}
	return status
}

// carryOut runs the container. It must not be left to libcontainer: there is none.
func (o order) carryOut() (status int, err error) {
	ctx := context.Background()
	if o.Bound {
		if err := bindToOne(); err != nil {
			return 0, err
		}
	}
	e, err := engine.New(engine.Config{StateDir: o.State})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	in, hold, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	defer in.Close()
	defer hold.Close()
	streams := runtime.Stdio{Stdin: in, Stdout: os.Stdout, Stderr: os.Stderr}
	c, err := e.Create(ctx, o.ID, o.Spec,
		runtime.CreateOptions{Bundle: o.Bundle, Stdio: streams, NoPivot: o.NoPivot, SystemdCgroup: o.SystemdCgroup})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, c.Delete(ctx, runtime.DeleteOptions{Force: true})) }()
	pid := c.Pid()
	if err := c.Start(ctx); err != nil {
		return 0, err
	}
	if o.Limits != nil {
		if err := c.Update(ctx, o.Limits); err != nil {
			return 0, err
		}
	}
	if o.Exec != nil {
		child, err := c.Exec(ctx, o.Exec, runtime.ExecOptions{Stdio: runtime.Stdio{Stdout: os.Stdout, Stderr: os.Stderr}})
		if err != nil {
			return 0, err
		}
		if _, err := runtimetest.Exit(child); err != nil {
			return 0, err
		}
	}
	if err := hold.Close(); err != nil {
		return 0, err
	}
	return runtimetest.Exit(pid)
}

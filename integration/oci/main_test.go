//go:build cgo

// Package oci attacks containers from within, in ways that have worked on runtimes, and sees
// that they do not work on this one. A race is lost more often than won, so these tests find
// holes that are wide: with a starter that can be traced, TestProcessesThatJoin counts a
// thousand looks into memory.
//
// An attack that never happened fails as surely as one that was fended off, so each test has two
// checks of its own: the attacker has tried and ended well, and it wins against something that is
// not protected (careless_test.go).
package oci

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/internal/testkit"
	"github.com/coracle-project/coracle/runtime"
	"github.com/coracle-project/coracle/runtime/engine"
	"github.com/coracle-project/coracle/runtime/lc"
	"github.com/coracle-project/coracle/runtime/runtimetest"
)

// In namespaces of their own: what others on the machine mount meanwhile is not what an attack has
// changed.
func TestMain(m *testing.M) {
	lc.Init()
	os.Exit(testkit.Isolate(runtimetest.Tests(m.Run).Run))
}

// attacker is the program that attacks, built once.
var attacker = sync.OnceValues(func() ([]byte, error) {
	dir, err := os.MkdirTemp("", "attacker")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "attacker")
	cmd := exec.Command("go", "build", "-o", file, "./attacker")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build the attacker: %w: %s", err, out)
	}
	return os.ReadFile(file)
})

// rig is a test's engine and a root file system with the attacker in it.
type rig struct {
	*testing.T
	engine *engine.Engine
	bundle string
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{T: t, bundle: runtimetest.Bundle(t)}
	program, err := attacker()
	r.must(err)
	r.must(os.WriteFile(r.inRoot("attacker"), program, 0o755))
	r.engine, err = engine.New(engine.Config{StateDir: filepath.Join(t.TempDir(), "state")})
	r.must(err)
	t.Cleanup(func() { _ = r.engine.Close() })
	return r
}

func (r *rig) inRoot(path string) string { return filepath.Join(r.bundle, "rootfs", path) }

func (r *rig) must(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

var serial atomic.Int64

func spec(args ...string) *specs.Spec {
	return runtimetest.Spec(fmt.Sprintf("attack-%d-%d", os.Getpid(), serial.Add(1)), args...)
}

func id(s *specs.Spec) string { return filepath.Base(s.Linux.CgroupsPath) }

// create makes a container and returns an error, or what takes it away.
func (r *rig) create(s *specs.Spec, stdio runtime.Stdio) (runtime.Container, int, error) {
	c, err := r.engine.Create(context.Background(), id(s), s, runtime.CreateOptions{Bundle: r.bundle, Stdio: stdio})
	if err != nil {
		return nil, 0, err
	}
	return c, c.Pid(), nil
}

// end kills, reaps and deletes.
func (r *rig) end(c runtime.Container, pid int) {
	r.Helper()
	if err := c.Signal(context.Background(), unix.SIGKILL); err != nil && !errors.Is(err, runtime.ErrNotRunning) {
		r.Fatal(err)
	}
	r.wait(pid)
	r.must(c.Delete(context.Background(), runtime.DeleteOptions{Force: true}))
}

func (r *rig) wait(pid int) int {
	r.Helper()
	var ws unix.WaitStatus
	for {
		_, err := unix.Wait4(pid, &ws, 0, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		r.must(err)
		return ws.ExitStatus()
	}
}

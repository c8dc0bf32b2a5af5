package runtimetest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/runtime"
)

// rig is one test's engine and what it needs to see that nothing is left.
type rig struct {
	testing.TB
	engine   runtime.Engine
	bundle   string
	stateDir string
	kind
}

var serial atomic.Int64

// patience is when a wait gives up. Nothing is expected to take any part of it: on a machine that
// does other things, too, everything takes as long as it takes.
const patience = 2 * time.Minute

func newRig(t testing.TB, engine NewEngine) *rig {
	r := &rig{TB: t, bundle: Bundle(t), stateDir: filepath.Join(t.TempDir(), "state")}
	r.engine = engine(t, r.stateDir)
	t.Cleanup(r.tidy)
	return r
}

// tidy takes away what a failed test left, so that those after it do not fail of it.
func (r *rig) tidy() {
	if !r.Failed() {
		return
	}
	if c, ok := r.engine.(io.Closer); ok {
		_ = c.Close()
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	ids, _ := r.engine.List(ctx)
	var made []runtime.Container
	for _, id := range ids {
		if c, err := r.engine.Load(ctx, id); err == nil {
			made = append(made, c)
			_ = c.SignalAll(ctx, unix.SIGKILL)
		}
	}
	// First all dead ones, for a pid namespace ends with the last.
	for {
		_, err := unix.Wait4(-1, nil, 0, nil)
		if err != nil && !errors.Is(err, unix.EINTR) {
			break
		}
	}
	for _, c := range made {
		_ = c.Delete(ctx, runtime.DeleteOptions{Force: true})
	}
}

// id is a new container id, unique on the machine.
func (r *rig) id() string {
	return fmt.Sprintf("test-%d-%d", os.Getpid(), serial.Add(1))
}

func (r *rig) must(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

func (r *rig) wantErr(err, kind error) {
	r.Helper()
	if !errors.Is(err, kind) {
		r.Fatalf("error is %v, want %v", err, kind)
	}
}

func (r *rig) create(spec *specs.Spec, stdio runtime.Stdio) runtime.Container {
	r.Helper()
	id := filepath.Base(spec.Linux.CgroupsPath)
	c, err := r.engine.Create(r.Context(), id, spec, runtime.CreateOptions{Bundle: r.bundle, Stdio: stdio})
	r.must(err)
	r.madeBy(id)
	return c
}

// madeBy sees to it that the engine under test did it itself.
func (r *rig) madeBy(id string) {
	r.Helper()
	data, err := os.ReadFile(filepath.Join(r.stateDir, id, "record.json"))
	r.must(err)
	var record struct{ Engine string }
	r.must(json.Unmarshal(data, &record))
	if (record.Engine != "coracle") != r.libcontainer {
		r.Errorf("container %s was made by engine %q", id, record.Engine)
	}
}

// run runs a container to its end, and returns what it wrote to both streams and its exit
// status.
func (r *rig) run(spec *specs.Spec) (string, int) {
	r.Helper()
	return r.runWith(spec, runtime.Stdio{})
}

func (r *rig) runWith(spec *specs.Spec, stdio runtime.Stdio) (string, int) {
	r.Helper()
	out := r.output()
	stdio.Stdout, stdio.Stderr = out.write, out.write
	c := r.create(spec, stdio)
	pid := c.Pid()
	r.must(c.Start(r.Context()))
	status := r.wait(pid)
	text := out.text()
	r.must(c.Delete(r.Context(), runtime.DeleteOptions{}))
	return text, status
}

// says runs a container and compares what it writes.
func (r *rig) says(spec *specs.Spec, want string) {
	r.Helper()
	if got, _ := r.run(spec); got != want {
		r.Errorf("got %q, want %q", got, want)
	}
}

// execSays runs a process in a container and compares what it writes.
func (r *rig) execSays(c runtime.Container, p *specs.Process, want string) {
	r.Helper()
	out := r.output()
	pid, err := c.Exec(r.Context(), p, runtime.ExecOptions{Stdio: runtime.Stdio{Stdout: out.write, Stderr: out.write}})
	r.must(err)
	r.wait(pid)
	if got := out.text(); got != want {
		r.Errorf("exec: got %q, want %q", got, want)
	}
}

// refused expects Create to fail with an error that has a text, and to leave nothing.
func (r *rig) refused(spec *specs.Spec, want string) {
	r.Helper()
	c, err := r.engine.Create(r.Context(), idOf(spec), spec, runtime.CreateOptions{Bundle: r.bundle})
	if err == nil {
		pid := c.Pid()
		_ = c.Delete(r.Context(), runtime.DeleteOptions{Force: true})
		r.wait(pid)
		r.Errorf("create succeeded, want an error with %q", want)
		return
	}
	if !strings.Contains(err.Error(), want) {
		r.Errorf("error is %q, want one with %q", err, want)
	}
	_, err = r.engine.Load(r.Context(), idOf(spec))
	r.wantErr(err, runtime.ErrNotFound)
}

// inRoot is a path in the root file system.
func (r *rig) inRoot(path string) string { return filepath.Join(r.bundle, "rootfs", path) }

// file makes a file in the bundle's directory and returns its path.
func (r *rig) file(name, content string) string {
	r.Helper()
	path := filepath.Join(r.bundle, name)
	r.must(os.MkdirAll(filepath.Dir(path), 0o755))
	r.must(os.WriteFile(path, []byte(content), 0o644))
	return path
}

// spec is a container that runs a shell script.
func (r *rig) spec(script string) *specs.Spec {
	return Spec(r.id(), "/bin/sh", "-c", script)
}

// running is a started container that waits for a signal.
func (r *rig) running() (runtime.Container, int) {
	r.Helper()
	c := r.create(Spec(r.id(), "/bin/sleep", "1000"), runtime.Stdio{})
	pid := c.Pid()
	r.must(c.Start(r.Context()))
	return c, pid
}

// end kills, reaps and deletes.
func (r *rig) end(c runtime.Container, pid int) {
	r.Helper()
	if err := c.Signal(r.Context(), unix.SIGKILL); err != nil && !errors.Is(err, runtime.ErrNotRunning) {
		r.Fatal(err)
	}
	r.wait(pid)
	r.must(c.Delete(r.Context(), runtime.DeleteOptions{Force: true}))
}

// wait is Exit.
func (r *rig) wait(pid int) int {
	r.Helper()
	status, err := Exit(pid)
	r.must(err)
	return status
}

func (r *rig) status(c runtime.Container, want specs.ContainerState) {
	r.Helper()
	s, err := c.State(r.Context())
	r.must(err)
	if s.Status != want {
		r.Fatalf("status is %s, want %s", s.Status, want)
	}
}

// output collects what processes write. Give write to the engine, then call text,
// which closes write and waits for the end.
type output struct {
	r           *rig
	read, write *os.File
}

func (r *rig) output() *output {
	rd, wr, err := os.Pipe()
	r.must(err)
	r.Cleanup(func() { rd.Close(); wr.Close() })
	return &output{r, rd, wr}
}

func (o *output) text() string {
	o.r.Helper()
	o.write.Close()
	o.r.must(o.read.SetReadDeadline(time.Now().Add(patience)))
	data, err := io.ReadAll(o.read)
	o.r.must(err)
	return strings.ReplaceAll(strings.TrimSpace(string(data)), "\r", "")
}

// line waits for one line.
func (o *output) line() string {
	o.r.Helper()
	o.r.must(o.read.SetReadDeadline(time.Now().Add(patience)))
	var line []byte
	for b := make([]byte, 1); ; {
		if _, err := o.read.Read(b); err != nil {
			o.r.Fatalf("read line after %q: %v", line, err)
		}
		if b[0] == '\n' {
			return string(line)
		}
		line = append(line, b[0])
	}
}

// checkLeaks fails the test if a child, state, cgroup or mount is left.
func (r *rig) checkLeaks() {
	r.Helper()
	if c, ok := r.engine.(io.Closer); ok {
		r.must(c.Close())
	}
	var ws unix.WaitStatus
	if pid, err := unix.Wait4(-1, &ws, unix.WNOHANG, nil); !errors.Is(err, unix.ECHILD) {
		r.Errorf("a child process is left: wait gives %d, %v", pid, err)
	}
	if entries, err := os.ReadDir(r.stateDir); err == nil && len(entries) > 0 {
		r.Errorf("left in the state directory: %v", entries)
	}
	mine := fmt.Sprintf("test-%d-", os.Getpid())
	for _, root := range cgroupRoots() {
		_ = filepath.WalkDir(filepath.Join(root, CgroupParent), func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() && strings.HasPrefix(d.Name(), mine) {
				r.Errorf("left cgroup %s", path)
			}
			return nil
		})
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	r.must(err)
	for _, dir := range []string{r.bundle, r.stateDir} {
		if bytes.Contains(mounts, []byte(" "+dir)) {
			r.Errorf("left a mount below %s:\n%s", dir, mounts)
		}
	}
}

// Tests is m.Run of a test program that makes cgroups. Its Run, for TestMain, ends with the removal
// of CgroupParent. Tests do not remove it: one could take it from another that runs in parallel
// and is about to make a cgroup in it.
type Tests func() int

// Run runs the tests and then removes CgroupParent from all hierarchies if it is empty.
func (run Tests) Run() int {
	code := run()
	for _, root := range cgroupRoots() {
		_ = os.Remove(filepath.Join(root, CgroupParent))
	}
	return code
}

// cgroupRoots are the mount points of all hierarchies.
func cgroupRoots() []string {
	roots := []string{"/sys/fs/cgroup"}
	entries, err := os.ReadDir("/sys/fs/cgroup")
	if err != nil {
		return nil
	}
	for _, e := range entries {
		if e.IsDir() {
			roots = append(roots, filepath.Join("/sys/fs/cgroup", e.Name()))
		}
	}
	return roots
}

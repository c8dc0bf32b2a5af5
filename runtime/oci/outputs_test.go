package oci_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/internal/testkit"
	"github.com/coracle-project/coracle/runtime"
	"github.com/coracle-project/coracle/runtime/runtimetest"
)

// Regression: what a process wrote to outputs that its caller did not want was kept in a file in
// the state directory, as long as the process lived and without a limit, so one exec could fill the
// host's /run. It also could write to the file as it liked.
func TestOutputsThatNoOneWantsStaySmall(t *testing.T) {
	const limit = 64 << 10
	// It closes the third descriptor when it has written all that it could.
	const flood = "head -c 1000000 /dev/zero; head -c 1000000 /dev/zero >&2; echo done >&3; exec sleep 1000 3>&-"
	e := with(testkit.Crun(t))(t, filepath.Join(t.TempDir(), "state")).(by)
	defer e.Close()
	host, err := os.Stat(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	done, to, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer done.Close()
	stdio := runtime.Stdio{Files: []*os.File{to}}
	spec := runtimetest.Spec("flood", "/bin/sh", "-c", flood)
	c, err := e.Create(t.Context(), "flood", spec, runtime.CreateOptions{Bundle: runtimetest.Bundle(t), Stdio: stdio})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := c.Delete(t.Context(), runtime.DeleteOptions{Force: true}); err != nil {
			t.Error(err)
		}
	}()
	if err := c.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	exec, err := c.Exec(t.Context(), runtimetest.Spec("flood", "/bin/sh", "-c", flood).Process, runtime.ExecOptions{Stdio: stdio})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := errors.Join(unix.Kill(exec, unix.SIGKILL), reaped(exec)); err != nil {
			t.Error(err)
		}
	}()
	to.Close()
	if said, err := io.ReadAll(done); err != nil || string(said) != "done\ndone\n" {
		t.Fatalf("%q, %v", said, err)
	}
	for what, pid := range map[string]int{"init": c.Pid(), "exec": exec} {
		null, err := os.Stat(fmt.Sprintf("/proc/%d/fd/1", pid))
		if err != nil {
			t.Fatal(err)
		}
		if null.Sys().(*syscall.Stat_t).Rdev != host.Sys().(*syscall.Stat_t).Rdev || os.SameFile(null, host) {
			t.Errorf("%s: standard output is %v of %d bytes, the host's /dev/null: %t", what, null.Mode(), null.Size(), os.SameFile(null, host))
		}
		stderr := fmt.Sprintf("/proc/%d/fd/2", pid)
		st, err := os.Stat(stderr)
		if err != nil {
			t.Fatal(err)
		}
		var fs unix.Statfs_t
		if err := unix.Statfs(stderr, &fs); err != nil {
			t.Fatal(err)
		}
		if size := fs.Blocks * uint64(fs.Bsize); st.Size() > limit || size > limit {
			t.Errorf("%s: standard error has %d bytes, on a file system of %d", what, st.Size(), size)
		}
	}
}

// Regression: the state of a container with more than 64 KiB of annotations, which the command
// repeats, was cut off, and so could not be read. Such a container could not be started.
func TestStateWithManyAnnotations(t *testing.T) {
	e := with(testkit.Crun(t))(t, filepath.Join(t.TempDir(), "state")).(by)
	defer e.Close()
	spec := runtimetest.Spec("annotated", "/bin/sleep", "1000")
	spec.Annotations = map[string]string{"example.com/data": strings.Repeat("x", 200<<10)}
	c, err := e.Create(t.Context(), "annotated", spec, runtime.CreateOptions{Bundle: runtimetest.Bundle(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := c.Delete(t.Context(), runtime.DeleteOptions{Force: true}); err != nil {
			t.Error(err)
		}
	}()
	if err := c.Start(t.Context()); err != nil {
		t.Error(err)
	}
}

// A command that says too much is an error, and takes no more memory than that.
func TestCommandThatSaysTooMuch(t *testing.T) {
	path := filepath.Join(t.TempDir(), "talks")
	script := "#!/bin/sh\ncase \"$*\" in *\" state talks\") head -c 5000000 /dev/zero;; *) exec " + testkit.Crun(t) + " \"$@\";; esac\n"
	if err := os.WriteFile(path, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	e := with(path)(t, filepath.Join(t.TempDir(), "state")).(by)
	defer e.Close()
	c, err := e.Create(t.Context(), "talks", runtimetest.Spec("talks", "/bin/true"), runtime.CreateOptions{Bundle: runtimetest.Bundle(t)})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.State(t.Context()); err == nil || !strings.Contains(err.Error(), "talks state: its output is longer than 4194304 bytes") {
		t.Errorf("state: %v", err)
	}
	if err := c.Delete(t.Context(), runtime.DeleteOptions{Force: true}); err != nil {
		t.Error(err)
	}
}

// Regression: a process whose standard error no one wants could make that file long, without
// filling it. Its exec then counted as failed, while it ran.
func TestProcessThatMakesItsErrorsLong(t *testing.T) {
	path := filepath.Join(t.TempDir(), "long")
	// The command truncates it in the place of the process, whose attempt could come too late.
	script := "#!/bin/sh\n" + testkit.Crun(t) + " \"$@\" || exit\n" +
		"case \"$*\" in *\" exec --detach \"*) truncate -s 5000000 /dev/stderr;; esac\n"
	if err := os.WriteFile(path, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	e := with(path)(t, filepath.Join(t.TempDir(), "state")).(by)
	defer e.Close()
	spec := runtimetest.Spec("long", "/bin/sleep", "1000")
	c, err := e.Create(t.Context(), "long", spec, runtime.CreateOptions{Bundle: runtimetest.Bundle(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := c.Delete(t.Context(), runtime.DeleteOptions{Force: true}); err != nil {
			t.Error(err)
		}
	}()
	if err := c.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	exec, err := c.Exec(t.Context(), spec.Process, runtime.ExecOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(unix.Kill(exec, unix.SIGKILL), reaped(exec)); err != nil {
		t.Error(err)
	}
}

// reaped waits for a process of an exec, which is our child.
func reaped(pid int) error {
	for {
		if _, err := unix.Wait4(pid, nil, 0, nil); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

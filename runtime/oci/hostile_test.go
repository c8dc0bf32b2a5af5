package oci_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/runtime"
	"github.com/coracle-project/coracle/runtime/runtimetest"
)

// TestCommandsThatDoNotServe: each fails with a sentence that says why, and leaves nothing.
func TestCommandsThatDoNotServe(t *testing.T) {
	dir := t.TempDir()
	script := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		return path
	}
	if err := os.WriteFile(filepath.Join(dir, "text"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ command, want string }{
		"relative":       {"runc", `OCI runtime "runc" is not an absolute path`},
		"missing":        {"/nowhere/runc", "OCI runtime: stat /nowhere/runc: no such file"},
		"a directory":    {dir, "is not a program"},
		"not executable": {filepath.Join(dir, "text"), "is not a program"},
		"fails silently": {script("silent", "exit 3"), "silent create: exit status 3"},
		"says why":       {script("talks", "echo no boat today >&2; exit 1"), "talks create: exit status 1: no boat today"},
		"logs why": {script("logs",
			`echo '{"level":"warning","msg":"wind"}{' > "$4"; echo '{"level":"error","msg":"no water"}' >> "$4"; exit 1`), "logs create: no water"},
		"makes no process": {script("lazy", "exit 0"), "wrote no pid file"},
		"writes no number": {
			script("wrong", `while [ $# -gt 1 ]; do [ "$1" != --pid-file ] || echo boat > "$2"; shift; done`),
			`wrote "boat\n" as a pid`,
		},
		"names another init": {script("one", `while [ $# -gt 1 ]; do [ "$1" != --pid-file ] || echo 1 > "$2"; shift; done`), "as a pid"},
	} {
		t.Run(name, func(t *testing.T) {
			state := filepath.Join(t.TempDir(), "state")
			e := with(c.command)(t, state).(by)
			defer e.Close()
			spec := runtimetest.Spec("hostile", "/bin/true")
			_, err := e.Create(t.Context(), "hostile", spec, runtime.CreateOptions{Bundle: runtimetest.Bundle(t)})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error is %v, want one with %q", err, c.want)
			}
			if left, _ := os.ReadDir(state); len(left) > 0 {
				t.Errorf("left %v", left)
			}
		})
	}
}

// TestCommandThatHangs: a caller's deadline ends it.
func TestCommandThatHangs(t *testing.T) {
	dir := t.TempDir()
	path, fifo := filepath.Join(dir, "hangs"), filepath.Join(dir, "began")
	script := "#!/bin/sh\ncase \"$*\" in *create*) echo > " + fifo + "; exec sleep 1000;; esac\n"
	if err := os.WriteFile(path, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	e := with(path)(t, filepath.Join(dir, "state")).(by)
	defer e.Close()
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		_, _ = os.ReadFile(fifo)
		cancel()
	}()
	_, err := e.Create(ctx, "hangs", runtimetest.Spec("hangs", "/bin/true"), runtime.CreateOptions{Bundle: runtimetest.Bundle(t)})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error is %v", err)
	}
}

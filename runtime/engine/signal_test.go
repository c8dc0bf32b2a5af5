package engine_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/runtime"
	"github.com/coracle-project/coracle/runtime/engine"
	"github.com/coracle-project/coracle/runtime/runtimetest"
)

// TestSignalsWhileWaiting sends signals by pidfd, past the engine, to inits that wait for start:
// those that end other programs end them, be they the first of a pid namespace or not.
func TestSignalsWhileWaiting(t *testing.T) {
	bundle := runtimetest.Bundle(t)
	e, err := engine.New(engine.Config{StateDir: filepath.Join(t.TempDir(), "state")})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	made := 0
	create := func(command string, namespaces int) runtime.Container {
		made++
		id := fmt.Sprintf("signals-%d-%d", os.Getpid(), made)
		spec := runtimetest.Spec(id, "/bin/sh", "-c", command)
		spec.Linux.Namespaces = spec.Linux.Namespaces[namespaces:] // the first is pid
		c, err := e.Create(t.Context(), id, spec, runtime.CreateOptions{Bundle: bundle})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	send := func(c runtime.Container, sig unix.Signal) {
		pidfd, err := unix.PidfdOpen(c.Pid(), 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(pidfd)
		if err := unix.PidfdSendSignal(pidfd, sig, nil, 0); err != nil {
			t.Errorf("%v: %v", sig, err)
		}
	}
	ended := func(c runtime.Container, pid, want int) {
		if got, err := runtimetest.Exit(pid); err != nil || got != want {
			t.Errorf("it ended with %d, %v, want %d", got, err, want)
		}
		if err := c.Delete(t.Context(), runtime.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	}
	for first := range 2 {
		for _, sig := range []unix.Signal{unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM} {
			c := create("true", first)
			pid := c.Pid()
			send(c, sig)
			ended(c, pid, 128+int(sig))
		}
	}

	// One that means nothing does not.
	c := create("exit 3", 0)
	pid := c.Pid()
	send(c, unix.SIGWINCH)
	if err := c.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	ended(c, pid, 3)
}

package engine_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/runtime"
	"github.com/coracle-project/coracle/runtime/engine"
	"github.com/coracle-project/coracle/runtime/runtimetest"
)

// A create or an exec whose caller goes away leaves no process behind, at whatever moment that is.
// Both go on in a second process, which the first one starts; it must be known even if the first
// one is killed right then.
func TestCancelledAtAnyMoment(t *testing.T) {
	bundle := runtimetest.Bundle(t)
	e, err := engine.New(engine.Config{StateDir: filepath.Join(t.TempDir(), "state")})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	id := func(what string) string { return fmt.Sprintf("%s-%d", what, os.Getpid()) }
	running, err := e.Create(t.Context(), id("running"), runtimetest.Spec(id("running"), "/bin/sleep", "1000"),
		runtime.CreateOptions{Bundle: bundle})
	if err != nil {
		t.Fatal(err)
	}
	pid := running.Pid()
	if err := running.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	for name, try := range map[string]func(context.Context) error{
		"create": func(ctx context.Context) error {
			spec := runtimetest.Spec(id("cancelled"), "/bin/sleep", "1000")
			clock := specs.LinuxNamespace{Type: specs.TimeNamespace} // such a create forks
			spec.Linux.Namespaces = append(spec.Linux.Namespaces, clock)
			c, err := e.Create(ctx, id("cancelled"), spec, runtime.CreateOptions{Bundle: bundle})
			if err != nil {
				return err
			}
			pid := c.Pid()
			if err := c.Delete(t.Context(), runtime.DeleteOptions{Force: true}); err != nil {
				t.Fatal(err)
			}
			await(t, pid)
			return nil
		},
		"exec": func(ctx context.Context) error {
			pid, err := running.Exec(ctx, runtimetest.Spec(id("running"), "/bin/true").Process, runtime.ExecOptions{})
			if err == nil {
				await(t, pid)
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			whole := time.Hour
			for range 10 {
				began := time.Now()
				if err := try(t.Context()); err != nil {
					t.Fatal(err)
				}
				whole = min(whole, time.Since(began))
			}
			const moments = 400
			cancelled := 0
			for i := range moments {
				ctx, cancel := context.WithTimeout(t.Context(), whole*time.Duration(i)/moments)
				err := try(ctx)
				cancel()
				switch {
				case errors.Is(err, context.DeadlineExceeded):
					cancelled++
				case err != nil:
					t.Fatalf("try %d: %v", i, err)
				}
				var ws unix.WaitStatus
				if pid, err := unix.Wait4(-1, &ws, unix.WNOHANG|unix.WALL, nil); pid != 0 || err != nil {
					t.Fatalf("try %d leaves a dead child: %d, %v", i, pid, err)
				}
			}
			t.Logf("%d of %d cancelled, one takes %v", cancelled, moments, whole)
			// How many depends on how busy the machine was at first, and on what follows the call.
			if cancelled == 0 {
				t.Error("none has been cancelled")
			}
		})
	}
	if err := running.Delete(t.Context(), runtime.DeleteOptions{Force: true}); err != nil {
		t.Fatal(err)
	}
	await(t, pid)
}

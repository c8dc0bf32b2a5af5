package engine_test

import (
	"fmt"
	"os"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/runtime"
	"github.com/coracle-project/coracle/runtime/engine"
	"github.com/coracle-project/coracle/runtime/lc"
	"github.com/coracle-project/coracle/runtime/runtimetest"
)

// both makes the same measurement of both engines.
func both(b *testing.B, measure func(*testing.B, runtime.Engine, string)) {
	for _, name := range []string{engine.Name, lc.Name} {
		b.Run(name, func(b *testing.B) {
			state, err := os.MkdirTemp("/dev/shm", "coracle-bench-") // on a tmpfs, as in real use
			if err != nil {
				b.Fatal(err)
			}
			b.Cleanup(func() { _ = os.RemoveAll(state) })
			var e runtime.Engine
			if name == lc.Name {
				e, err = lc.New(lc.Config{StateDir: state, Children: &processes})
			} else {
				e, err = engine.New(engine.Config{StateDir: state})
			}
			if err != nil {
				b.Fatal(err)
			}
			measure(b, e, runtimetest.Bundle(b))
			if c, ok := e.(interface{ Close() error }); ok {
				if err := c.Close(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

var serial atomic.Int64

func reap(b *testing.B, pid int) {
	var ws unix.WaitStatus
	for {
		if _, err := unix.Wait4(pid, &ws, 0, nil); err == nil {
			return
		} else if err != unix.EINTR {
			b.Fatal(err)
		}
	}
}

// BenchmarkStart is create, start, exit, reap and delete of a container that runs true.
func BenchmarkStart(b *testing.B) {
	both(b, func(b *testing.B, e runtime.Engine, bundle string) {
		for n := 0; b.Loop(); n++ {
			startOne(b, e, bundle, fmt.Sprintf("bench-%d", n))
		}
	})
}

// BenchmarkStartParallel is the same from four callers at once.
func BenchmarkStartParallel(b *testing.B) {
	both(b, func(b *testing.B, e runtime.Engine, bundle string) {
		b.SetParallelism(2)
		b.RunParallel(func(p *testing.PB) {
			for p.Next() {
				startOne(b, e, bundle, fmt.Sprintf("bench-%d", serial.Add(1)))
			}
		})
	})
}

func startOne(b *testing.B, e runtime.Engine, bundle, id string) {
	ctx := b.Context()
	c, err := e.Create(ctx, id, runtimetest.Spec(id, "/bin/true"), runtime.CreateOptions{Bundle: bundle})
	if err != nil {
		b.Fatal(err)
	}
	pid := c.Pid()
	if err := c.Start(ctx); err != nil {
		b.Fatal(err)
	}
	reap(b, pid)
	if err := c.Delete(ctx, runtime.DeleteOptions{}); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkExec is an exec of true in a running container, to its reaping.
func BenchmarkExec(b *testing.B) {
	both(b, func(b *testing.B, e runtime.Engine, bundle string) {
		ctx := b.Context()
		spec := runtimetest.Spec("bench", "/bin/sleep", "1000")
		c, err := e.Create(ctx, "bench", spec, runtime.CreateOptions{Bundle: bundle})
		if err != nil {
			b.Fatal(err)
		}
		init := c.Pid()
		if err := c.Start(ctx); err != nil {
			b.Fatal(err)
		}
		spec.Process.Args = []string{"/bin/true"}
		for b.Loop() {
			pid, err := c.Exec(ctx, spec.Process, runtime.ExecOptions{})
			if err != nil {
				b.Fatal(err)
			}
			reap(b, pid)
		}
		_ = c.Signal(ctx, unix.SIGKILL)
		reap(b, init)
		if err := c.Delete(ctx, runtime.DeleteOptions{Force: true}); err != nil {
			b.Fatal(err)
		}
	})
}

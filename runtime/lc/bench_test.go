package lc_test

import (
	"fmt"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/runtime"
	"github.com/coracle-project/coracle/runtime/lc"
	"github.com/coracle-project/coracle/runtime/runtimetest"
)

func reap(b testing.TB, pid int) {
	b.Helper()
	var status unix.WaitStatus
	for {
		_, err := unix.Wait4(pid, &status, 0, nil)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			b.Fatal(err)
		}
		return
	}
}

// BenchmarkStart is create, start, exit, reap and delete of a container that
// runs true: one after the other, and with pauses in between, in which the kernel
// forgets what cgroupwarm is about. Pauses do not count.
func BenchmarkStart(b *testing.B) {
	for _, pause := range []time.Duration{0, 60 * time.Millisecond, 500 * time.Millisecond} {
		b.Run(fmt.Sprintf("pause=%v", pause), func(b *testing.B) { benchmarkStart(b, pause) })
	}
}

func benchmarkStart(b *testing.B, pause time.Duration) {
	bundle := runtimetest.Bundle(b)
	e, err := lc.New(lc.Config{StateDir: benchState(b), Children: &processes})
	if err != nil {
		b.Fatal(err)
	}
	ctx := b.Context()
	n := 0
	for b.Loop() {
		n++
		b.StopTimer()
		time.Sleep(pause)
		b.StartTimer()
		id := fmt.Sprintf("bench-%d", n)
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
}

// benchState is on a tmpfs, as in real use.
func benchState(b *testing.B) string {
	dir, err := os.MkdirTemp("/dev/shm", "coracle-bench-")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

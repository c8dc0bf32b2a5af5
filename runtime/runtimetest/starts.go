package runtimetest

import (
	"context"
	"os"
	"path/filepath"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/runtime"
)

var startTests = group{
	// The gate remains; no process waits at it.
	"a start that was killed after it had released init": func(r *rig) {
		out := r.output()
		c := r.create(r.spec("echo ready; exec sleep 1000"), runtime.Stdio{Stdout: out.write})
		pid := c.Pid()
		gates, err := filepath.Glob(filepath.Join(r.stateDir, c.ID(), "exec.fifo"))
		r.must(err)
		below, err := filepath.Glob(filepath.Join(r.stateDir, c.ID(), "*", "exec.fifo"))
		r.must(err)
		if gates = append(gates, below...); len(gates) != 1 {
			r.Fatalf("gates %q, want one", gates)
		}
		r.must(c.Start(r.Context()))
		out.line()
		r.must(unix.Mkfifo(gates[0], 0o600))
		ctx, cancel := context.WithTimeout(r.Context(), patience)
		defer cancel()
		r.wantErr(c.Start(ctx), runtime.ErrRunning)
		r.status(c, specs.StateRunning)
		if _, err := os.Stat(gates[0]); !os.IsNotExist(err) {
			r.Errorf("the gate is left: %v", err)
		}
		r.end(c, pid)
	},
}

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/coracle-project/coracle/integration/bench/page"
)

// measured is what the programs print that measure what this one cannot: clusters with packages of
// another module (cluster/bench), one container with cgo (integration/ocibench).
type measured struct {
	Version string        `json:"version"`
	Figures []page.Figure `json:"figures"`
}

// runProgram runs the one of that name. After an error, out has what was measured before.
func runProgram(ctx context.Context, name string, argv []string) (out measured, err error) {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 3 * time.Minute
	cmd.Stderr = os.Stderr
	raw, err := cmd.Output()
	if err := errors.Join(err, json.Unmarshal(raw, &out)); err != nil {
		return out, fmt.Errorf("%s: %w", name, err)
	}
	return out, nil
}

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/cmd/coracle/bar"
)

// snapshotEnd is how long the program that reads and writes snapshots may take to end when it is
// told to: it removes what is not finished.
const snapshotEnd = 30 * time.Second

// snapshotTool has coracle-kube, which is linked with etcd, act on a snapshot's file. It tells how
// far it is, line by line, and at last what it did.
func (p place) snapshotTool(ctx context.Context, progress *bar.Progress, verb, file string, flags ...string) (snapshotFacts, error) {
	program, err := sibling("coracle-kube")
	if err != nil {
		return snapshotFacts{}, err
	}
	args := append([]string{"snapshot", verb, "--log-level", "error", "--root", p.kubeRoot(), "--state", p.kubeState()}, flags...)
	cmd := exec.CommandContext(ctx, program, append(args, "--", file)...)
	cmd.Cancel = func() error { return cmd.Process.Signal(unix.SIGTERM) }
	cmd.WaitDelay = snapshotEnd
	var complaints bytes.Buffer
	cmd.Stderr = &complaints
	out, err := cmd.StdoutPipe()
	if err != nil {
		return snapshotFacts{}, err
	}
	if err := cmd.Start(); err != nil {
		return snapshotFacts{}, err
	}
	facts, told := snapshotResult(out, progress)
	_, _ = io.Copy(io.Discard, out)
	err = cmd.Wait()
	switch {
	case err == nil && told == nil: // also if we were told to stop just now: it is done
		return facts, nil
	case ctx.Err() != nil:
		return snapshotFacts{}, fmt.Errorf("it was cut off: %w", ctx.Err())
	case err != nil:
		return snapshotFacts{}, complaint(complaints.String(), err)
	}
	return snapshotFacts{}, fmt.Errorf("read what coracle-kube did: %w", told)
}

// snapshotResult shows progress until the result comes.
func snapshotResult(lines io.Reader, progress *bar.Progress) (snapshotFacts, error) {
	for in := json.NewDecoder(lines); ; {
		var line struct {
			Done   int64          `json:"done"`
			Total  int64          `json:"total"`
			Result *snapshotFacts `json:"result"`
		}
		err := in.Decode(&line)
		switch {
		case errors.Is(err, io.EOF):
			return snapshotFacts{}, errNoResult
		case err != nil:
			return snapshotFacts{}, err
		case line.Result != nil:
			return *line.Result, nil
		}
		progress.At(line.Done, line.Total)
	}
}

// complaint is what a program of ours ended with, or err if it did not say.
func complaint(said string, err error) error {
	said = strings.TrimSpace(said)
	if _, last, ok := strings.Cut("\n"+said, "\ncoracle-kube: "); ok {
		return errors.New(last)
	}
	if said != "" {
		return fmt.Errorf("%w: %s", err, said)
	}
	return err
}

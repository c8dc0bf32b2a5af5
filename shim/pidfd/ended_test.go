package pidfd

import (
	"context"
	"errors"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A process that lives is waited for until the context ends, one that was killed until it is dead,
// though no one has reaped it.
func TestEnded(t *testing.T) {
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Wait() }() // killed
	defer func() { _ = cmd.Process.Kill() }()
	f, err := Open(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	ctx, cancel := context.WithCancel(t.Context())
	go cancel()
	if err := Ended(ctx, f); !errors.Is(err, context.Canceled) {
		t.Errorf("of a process that lives: %v", err)
	}
	if err := f.SetReadDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	if err := unix.Kill(cmd.Process.Pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := Ended(t.Context(), f); err != nil {
			t.Errorf("of a process that was killed: %v", err)
		}
	}
	if s, err := ReadStat(cmd.Process.Pid); err != nil || s.State != 'Z' {
		t.Errorf("it is %c, %v", s.State, err)
	}
}

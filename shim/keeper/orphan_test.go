package keeper_test

import (
	"errors"
	"io"
	"os/exec"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/shim/keeper"
	"github.com/coracle-project/coracle/shim/pidfd"
)

// The keeper reaps processes that their dead parent has left to it, and knows how they ended.
// Before Linux 6.15 only the parent can report that.
func TestExitOfOrphans(t *testing.T) {
	k, _ := start(t)
	for script, want := range map[string]int32{"exit 7": 7, "kill -KILL $$": 137} {
		// The program's child outlives the program, and waits until its input is closed.
		p, out := program(t, "shell", script)
		if _, err := k.Supervise(p); err != nil {
			t.Fatal(err)
		}
		line(t, out) // the line with its arguments
		pid, err := strconv.Atoi(line(t, out))
		if err != nil {
			t.Fatal(err)
		}
		f, err := pidfd.Open(pid)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		began, err := pidfd.StartTime(pid)
		if err != nil {
			t.Fatal(err)
		}
		eventually(t, "the program has ended", func() bool { return status(t, k, p.Name).State == keeper.Stayed })
		if err := k.Forget(p.Name); err != nil {
			t.Fatal(err)
		}
		if _, err := k.Exit(pid, began); !errors.Is(err, keeper.ErrNotFound) {
			t.Errorf("%s: while it runs: %v", script, err)
		}
		if err := unix.PidfdSendSignal(int(f.Fd()), unix.SIGUSR1, nil, 0); err != nil {
			t.Fatal(err)
		}
		if err := pidfd.Ended(t.Context(), f); err != nil {
			t.Fatal(err)
		}
		ws, err := k.Exit(pid, began)
		if code := pidfd.ExitCode(ws); err != nil || code != want {
			t.Errorf("%s: %d, %v", script, code, err)
		}
		if _, err := k.Exit(pid, began+1); !errors.Is(err, keeper.ErrNotFound) {
			t.Errorf("%s: another process with the pid: %v", script, err)
		}
	}
}

// orphan starts a shell, writes its pid, and exits. The shell runs the script after SIGUSR1.
func orphan(out io.Writer, script string) error {
	cmd := exec.Command("/bin/sh", "-c", "PATH=/usr/bin:/bin; trap 'kill $!' USR1; sleep 1000 & echo ready; wait; wait; "+script)
	ready, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	if _, err := ready.Read(make([]byte, 16)); err != nil {
		return err
	}
	_, err = io.WriteString(out, strconv.Itoa(cmd.Process.Pid)+"\n")
	return err
}

package stuck

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/internal/testkit/nofiles"
)

func TestReap(t *testing.T) {
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pid := cmd.Process.Pid
	if got := Parent(pid); got != os.Getpid() {
		t.Errorf("its parent is %d, want %d", got, os.Getpid())
	}
	if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(time.Minute); !Stopped(pid); {
		if time.Now().After(end) {
			t.Fatal("it has not been stopped")
		}
	}
	err := Reap(pid, time.Millisecond)
	if want := fmt.Sprintf("process %d, in state T", pid); !errors.Is(err, ErrAlive) || !strings.Contains(err.Error(), want) {
		t.Errorf("reap a living one: %v, want one with %q", err, want)
	}
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := Reap(pid, Patience); err != nil {
		t.Errorf("reap a killed one: %v", err)
	}
	if err := cmd.Wait(); !errors.Is(err, unix.ECHILD) {
		t.Errorf("wait: %v, want %v", err, unix.ECHILD)
	}
	if err := Reap(pid, Patience); err != nil {
		t.Errorf("reap a reaped one: %v", err)
	}
}

func TestReapWithoutDescriptors(t *testing.T) {
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = cmd.Process.Kill(), cmd.Process.Release() })
	pid := cmd.Process.Pid
	nofiles.Run(t, func() {
		if fd, err := unix.PidfdOpen(pid, 0); !errors.Is(err, unix.EMFILE) {
			t.Fatalf("pidfd_open: %d, %v, want %v", fd, err, unix.EMFILE)
		}
		if err := Reap(pid, 10*time.Millisecond); !errors.Is(err, ErrAlive) {
			t.Errorf("reap a living one: %v, want %v", err, ErrAlive)
		}
		if err := unix.Kill(pid, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		if err := Reap(pid, Patience); err != nil {
			t.Errorf("reap a killed one: %v", err)
		}
		if err := unix.Kill(pid, 0); !errors.Is(err, unix.ESRCH) {
			t.Errorf("kill a reaped one: %v, want %v", err, unix.ESRCH)
		}
		if err := Reap(pid, Patience); err != nil {
			t.Errorf("reap a reaped one: %v", err)
		}
	})
}

// All children of a group are reaped, and no others.
func TestReapGroup(t *testing.T) {
	start := func(pgid int) *exec.Cmd {
		t.Helper()
		cmd := exec.Command("sleep", "1000")
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pgid: pgid}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _, _ = cmd.Process.Kill(), cmd.Wait() })
		return cmd
	}
	leader, other := start(0), start(0)
	pgid := leader.Process.Pid
	member := start(pgid)
	err := ReapGroup(pgid, time.Millisecond)
	if want := fmt.Sprintf("process group %d", pgid); !errors.Is(err, ErrAlive) || !strings.Contains(err.Error(), want) {
		t.Errorf("reap living ones: %v", err)
	}
	if err := unix.Kill(-pgid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := ReapGroup(pgid, Patience); err != nil {
		t.Errorf("reap killed ones: %v", err)
	}
	for _, cmd := range []*exec.Cmd{leader, member} {
		if err := cmd.Wait(); !errors.Is(err, unix.ECHILD) {
			t.Errorf("wait: %v, want %v", err, unix.ECHILD)
		}
	}
	if err := ReapGroup(pgid, Patience); err != nil {
		t.Errorf("reap reaped ones: %v", err)
	}
	if err := ReapGroup(0, Patience); !errors.Is(err, unix.EINVAL) {
		t.Errorf("reap the group of this process: %v", err)
	}
	if state := State(other.Process.Pid); state == 0 || state == 'Z' {
		t.Errorf("another child is in state %q", state)
	}
}

package stuck

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
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

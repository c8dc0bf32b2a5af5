package pidfd_test

import (
	"errors"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/coracle-project/coracle/shim/pidfd"
)

func TestWaitForChild(t *testing.T) {
	for script, want := range map[string]int32{"exit 0": 0, "exit 7": 7, "kill -9 $$": 137, "kill -15 $$": 143} {
		cmd := exec.Command("sh", "-c", script)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		f, err := pidfd.Open(cmd.Process.Pid)
		if err != nil {
			t.Fatal(err)
		}
		if code, err := pidfd.Wait(f, cmd.Process.Pid); err != nil || code != want {
			t.Errorf("%s: %d, %v", script, code, err)
		}
		f.Close()
		cmd.Process.Release()
	}
}

// A process that another parent has reaped: its code comes from the kernel, where that
// can tell (Linux 6.15), and is unknown elsewhere.
func TestWaitForReaped(t *testing.T) {
	cmd := exec.Command("sh", "-c", "read x; exit 7")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	f, err := pidfd.Open(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	in.Close()
	cmd.Wait()
	if code, err := pidfd.Wait(f, cmd.Process.Pid); err != nil || (code != 7 && code != pidfd.Unknown) {
		t.Errorf("%d, %v", code, err)
	}
}

func TestCloseEndsWait(t *testing.T) {
	f, err := pidfd.Open(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() {
		_, err := pidfd.Wait(f, os.Getpid())
		done <- err
	}()
	f.Close()
	if err := <-done; err == nil {
		t.Error("wait returned without an error")
	}
}

func TestOpenStarted(t *testing.T) {
	start, err := pidfd.StartTime(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	f, err := pidfd.OpenStarted(os.Getpid(), start)
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	if _, err := pidfd.OpenStarted(os.Getpid(), start+1); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("another process's start time: %v", err)
	}
	if _, err := pidfd.Open(1 << 30); err == nil {
		t.Error("no such process: opened")
	}
}

package engine

import (
	"errors"
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/runtime"
	"github.com/coracle-project/coracle/runtime/internal/base"
)

// TestHomeIsOfInit: init ends before its root is opened, and another process gets its number. That
// process's /etc/passwd gave the HOME of an exec.
func TestHomeIsOfInit(t *testing.T) {
	init := exec.Command("sleep", "1000")
	if err := init.Start(); err != nil {
		t.Fatal(err)
	}
	pidfd, err := unix.PidfdOpen(init.Process.Pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pidfd)
	c := (&Engine{store: &base.Store{}}).container(&base.Record{})
	c.Rec.Init.Pid = init.Process.Pid
	want := homeIn("/", 0)
	if got, err := c.home(pidfd, 0); err != nil || got != want {
		t.Errorf("while init runs: %q, %v; want %q", got, err, want)
	}
	_ = init.Process.Kill()
	_ = init.Wait()
	c.Rec.Init.Pid = os.Getpid() // as if the number were this process's now
	if got, err := c.home(pidfd, 0); !errors.Is(err, runtime.ErrNotRunning) {
		t.Errorf("another process has the number: %q, %v; want %v", got, err, runtime.ErrNotRunning)
	}
}

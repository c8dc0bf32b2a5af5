package engine

import (
	"errors"
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"
)

// A child that the starter had cloned when it died is found by its descriptors, and reaped.
func TestEndLost(t *testing.T) {
	conv, err := newConversation()
	if err != nil {
		t.Fatal(err)
	}
	defer conv.close()
	end, err := unix.FcntlInt(uintptr(conv.childs), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	file := os.NewFile(uintptr(end), "sync")
	defer file.Close()
	lost, other := exec.Command("sleep", "1000"), exec.Command("sleep", "1000")
	lost.ExtraFiles = []*os.File{file}
	for _, cmd := range []*exec.Cmd{lost, other} {
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
	}
	if err := conv.endLost(); err != nil {
		t.Error(err)
	}
	if err := lost.Wait(); !errors.Is(err, unix.ECHILD) {
		t.Errorf("wait for the lost child: %v, want %v", err, unix.ECHILD)
	}
	if err := other.Process.Signal(unix.SIGKILL); err != nil {
		t.Errorf("another child: %v", err)
	}
	if err := other.Wait(); err == nil {
		t.Error("another child has ended by itself")
	}
}

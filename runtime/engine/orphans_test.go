package engine

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/runtime/plan"
)

// A child that the starter had cloned when it died is found by its descriptors, and reaped.
func TestEndLost(t *testing.T) {
	conv, err := newConversation(&plan.Plan{}, time.Second)
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

// A child that another goroutine had forked, and that had not executed its program yet, was killed.
func TestEndLostSparesForks(t *testing.T) {
	conv, err := newConversation(&plan.Plan{}, time.Second)
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
	// The shell plays the forked process: when told, it closes what exec closes.
	forked := exec.CommandContext(t.Context(), "sh", "-c", "read told; exec 3>&-; echo closed; read end")
	forked.ExtraFiles = []*os.File{file}
	stdin, err := forked.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := forked.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := forked.Start(); err != nil {
		t.Fatal(err)
	}
	syscall.ForkLock.Lock() // as a goroutine that forks has it
	done := make(chan error, 1)
	go func() { done <- conv.endLost() }()
	early := false
	stacks := make([]byte, 1<<20)
	for deadline := time.Now().Add(time.Minute); !early; {
		if strings.Contains(string(stacks[:runtime.Stack(stacks, true)]), "[sync.RWMutex.RLock") {
			break
		}
		select {
		case err := <-done:
			t.Errorf("it did not wait for the fork: %v", err)
			done <- err
			early = true
		default:
			if time.Now().After(deadline) {
				t.Error("it neither waits nor ends")
				early = true
			}
			runtime.Gosched()
		}
	}
	if _, err := fmt.Fprintln(stdin, "told"); err != nil {
		t.Error(err)
	}
	if got, err := bufio.NewReader(stdout).ReadString('\n'); err != nil || got != "closed\n" {
		t.Errorf("the forked child says %q, %v", got, err)
	}
	syscall.ForkLock.Unlock()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if _, err := fmt.Fprintln(stdin, "end"); err != nil {
		t.Errorf("the forked child: %v", err)
	}
	if err := forked.Wait(); err != nil {
		t.Errorf("the forked child: %v", err)
	}
}

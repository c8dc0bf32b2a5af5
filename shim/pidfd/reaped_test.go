package pidfd_test

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"testing"

	"github.com/coracle-project/coracle/shim/pidfd"
)

// TestParent is the parent of processes that TestWaitWhileReaped waits for. It reaps them at once.
func TestParent(t *testing.T) {
	if os.Getenv("PIDFD_PARENT") == "" {
		return
	}
	for {
		child := exec.Command("/bin/sh", "-c", "read x; exit 7")
		child.Stdin = os.Stdin
		if err := child.Start(); err != nil {
			os.Exit(1)
		}
		fmt.Println(child.Process.Pid)
		_ = child.Wait()
		if child.ProcessState.ExitCode() != 7 {
			os.Exit(0) // nothing more to read
		}
	}
}

// The process of another parent ends while its status is requested. Before the process is reaped,
// the status is not known yet; afterwards the process does not exist. One request can meet both.
func TestWaitWhileReaped(t *testing.T) {
	const rounds = 1000
	parent := exec.Command("/proc/self/exe", "-test.run=^TestParent$")
	parent.Env = append(os.Environ(), "PIDFD_PARENT=1")
	in, err := parent.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := parent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = parent.Process.Kill()
		_ = parent.Wait()
	}()
	pids := bufio.NewReader(out)
	unknown := 0
	for range rounds {
		var pid int
		if _, err := fmt.Fscan(pids, &pid); err != nil {
			t.Fatal(err)
		}
		f, err := pidfd.Open(pid)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(in, "\n"); err != nil {
			t.Fatal(err)
		}
		code, err := pidfd.Wait(f)
		if err != nil {
			t.Fatal(err)
		}
		if code != 7 {
			unknown++
		}
		f.Close()
	}
	if unknown > 0 {
		t.Errorf("%d of %d exit codes are not known", unknown, rounds)
	}
}

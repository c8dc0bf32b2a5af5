package pidfd_test

import (
	"errors"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

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
		if code, err := pidfd.Wait(f); err != nil || code != want {
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
	if code, err := pidfd.Wait(f); err != nil || (code != 7 && code != pidfd.Unknown) {
		t.Errorf("%d, %v", code, err)
	}
}

// A child that has got the pid of a process that is gone keeps its status for its own waiter.
func TestWaitWhosePidWasReused(t *testing.T) {
	const tries = 50 // other processes on the machine take pids too
	for range tries {
		cmd := exec.Command("sh", "-c", "read x; exit 7")
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		pid := cmd.Process.Pid
		f, err := pidfd.Open(pid)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		in.Close()
		_ = cmd.Wait() // exit status 7
		if err := exitAs(pid, 9); errors.Is(err, unix.EEXIST) {
			continue
		} else if err != nil {
			t.Fatal(err)
		}
		// The process has ended when it can be waited for.
		if err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil); err != nil {
			t.Fatal(err)
		}
		if code, err := pidfd.Wait(f); err != nil || code != 7 && code != pidfd.Unknown {
			t.Errorf("the first one ended with %d, %v", code, err)
		}
		var ws unix.WaitStatus
		if got, err := unix.Wait4(pid, &ws, unix.WNOHANG, nil); err != nil || got != pid || ws.ExitStatus() != 9 {
			t.Errorf("the second one: pid %d, status %d, %v", got, ws.ExitStatus(), err)
		}
		return
	}
	t.Fatalf("none of %d pids was free again", tries)
}

// exitAs starts a child that has this pid and exits at once. EEXIST: the pid is in use.
func exitAs(pid int, status uintptr) error {
	tid := int32(pid)
	args := struct {
		flags, pidfd, childTID, parentTID, exitSignal, stack, stackSize, tls, setTID, setTIDSize uint64
	}{exitSignal: uint64(unix.SIGCHLD), setTID: uint64(uintptr(unsafe.Pointer(&tid))), setTIDSize: 1}
	got, _, errno := unix.RawSyscall(unix.SYS_CLONE3, uintptr(unsafe.Pointer(&args)), unsafe.Sizeof(args), 0)
	if errno != 0 {
		return errno
	}
	for got == 0 {
		_, _, _ = unix.RawSyscall(unix.SYS_EXIT_GROUP, status, 0, 0)
	}
	runtime.KeepAlive(&tid)
	return nil
}

func TestCloseEndsWait(t *testing.T) {
	f, err := pidfd.Open(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() {
		_, err := pidfd.Wait(f)
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

// Package testkit starts real parts for end-to-end tests — coracled, a registry,
// crictl — and checks that nothing of them is left.
//
// # A machine of its own
//
// Tests run in network, process, mount, IPC and UTS namespaces of their own
// (Isolate), so that ports are free, so that "no process, mount, link or nftables
// table is left" can be said of the whole namespace, and so that nothing of a test
// outlives it, however it ends. Cgroups cannot be hidden that way: each daemon
// under test has a cgroup parent with a unique name.
//
//	func TestMain(m *testing.M) { os.Exit(testkit.Isolate(m.Run)) }
package testkit

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// stageVar tells a re-executed test binary what it is.
const stageVar = "CORACLE_TESTKIT_STAGE"

// Isolate runs f in namespaces of its own and returns the exit code for os.Exit.
// It executes the program again twice: as the init of the new process namespace,
// and below it as the process that calls f.
func Isolate(f func() int) int {
	switch os.Getenv(stageVar) {
	case "":
		return report(outside())
	case "init":
		return report(inside())
	default:
		_ = os.Unsetenv(stageVar)
		return f()
	}
}

func report(code int, err error) int {
	if err != nil {
		fmt.Fprintln(os.Stderr, "testkit:", err)
		return 1
	}
	return code
}

// outside starts the new namespaces' init and waits for it.
func outside() (int, error) {
	if os.Geteuid() != 0 {
		return 1, errors.New("these tests need root")
	}
	cmd := again("init")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWIPC | syscall.CLONE_NEWUTS,
		Pdeathsig:  syscall.SIGKILL,
	}
	if err := cmd.Start(); err != nil {
		return 1, err
	}
	stop := forward(cmd.Process)
	defer stop()
	err := cmd.Wait()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return max(exit.ExitCode(), 1), nil
	}
	return 0, err
}

// inside is process 1: it makes /proc and the loopback device, starts the tests and
// reaps what they leave.
func inside() (int, error) {
	if err := private(); err != nil {
		return 1, err
	}
	cmd := again("run")
	if err := cmd.Start(); err != nil {
		return 1, err
	}
	stop := forward(cmd.Process)
	defer stop()
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return 1, fmt.Errorf("wait: %w", err)
		case pid == cmd.Process.Pid && status.Signaled():
			return 128 + int(status.Signal()), nil
		case pid == cmd.Process.Pid && status.Exited():
			return status.ExitStatus(), nil
		}
	}
}

// private fills the new namespaces. Mounts are shared within, as Kubernetes asks
// of a node, but nothing reaches the host.
func private() error {
	for _, m := range []struct {
		source, target, fstype string
		flags                  uintptr
	}{
		{"", "/", "", unix.MS_PRIVATE | unix.MS_REC},
		{"proc", "/proc", "proc", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC},
		{"", "/", "", unix.MS_SHARED | unix.MS_REC},
	} {
		if err := unix.Mount(m.source, m.target, m.fstype, m.flags, ""); err != nil {
			return fmt.Errorf("mount %s: %w", m.target, err)
		}
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("link lo: %w", err)
	}
	return netlink.LinkSetUp(lo)
}

func again(stage string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Args[0] = os.Args[0]
	cmd.Env = append(os.Environ(), stageVar+"="+stage)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	return cmd
}

// forward passes the signals with which `go test` and a terminal end a run. The
// returned function ends it.
func forward(p *os.Process) func() {
	ch := make(chan os.Signal, 4)
	done := make(chan struct{})
	signal.Notify(ch, syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT)
	go func() {
		for {
			select {
			case s := <-ch:
				_ = p.Signal(s)
			case <-done:
				return
			}
		}
	}()
	return func() { signal.Stop(ch); close(done) }
}

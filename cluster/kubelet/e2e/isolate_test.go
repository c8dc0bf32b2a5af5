package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// stageVar tells the re-executed test binary what it is.
const stageVar = "CORACLE_KUBELET_E2E_STAGE"

// TestMain runs the tests in network, process, mount, IPC and UTS namespaces of their own: pods'
// networks, mounts and processes neither meet the machine's nor outlive the tests.
func TestMain(m *testing.M) {
	code, err := 1, error(nil)
	switch os.Getenv(stageVar) {
	case "":
		code, err = again("init", &syscall.SysProcAttr{
			Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWIPC | syscall.CLONE_NEWUTS,
			Pdeathsig:  syscall.SIGKILL,
		})
	case "init":
		if err = private(); err == nil {
			code, err = again("run", nil)
		}
	default:
		_ = os.Unsetenv(stageVar)
		code = m.Run()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "kubelet e2e:", err)
		code = 1
	}
	os.Exit(code)
}

// private fills the new namespaces. Mounts are shared within, as a node's are, but nothing reaches
// the machine.
func private() error {
	for _, m := range []struct {
		source, target, fstype string
		flags                  uintptr
	}{
		{"", "/", "", unix.MS_PRIVATE | unix.MS_REC},
		{"proc", "/proc", "proc", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC},
		// Runtimes keep namespaces and sockets there, whatever their configuration says.
		{"tmpfs", "/run", "tmpfs", unix.MS_NOSUID | unix.MS_NODEV},
		{"", "/", "", unix.MS_SHARED | unix.MS_REC},
	} {
		if err := unix.Mount(m.source, m.target, m.fstype, m.flags, ""); err != nil {
			return fmt.Errorf("mount %s: %w", m.target, err)
		}
	}
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("bring lo up: %w", err)
	}
	defer unix.Close(s)
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	lo.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	return unix.IoctlIfreq(s, unix.SIOCSIFFLAGS, lo)
}

// again executes this program once more. As process 1 it reaps whatever the tests leave.
func again(stage string, attr *syscall.SysProcAttr) (int, error) {
	if os.Geteuid() != 0 {
		return 1, errors.New("these tests need root")
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Args[0] = os.Args[0]
	cmd.Env = append(os.Environ(), stageVar+"="+stage)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = attr
	if err := cmd.Start(); err != nil {
		return 1, err
	}
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT)
	go func() {
		for s := range signals {
			_ = cmd.Process.Signal(s)
		}
	}()
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

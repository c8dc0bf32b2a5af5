// Package isolate runs a program in network, process, mount, IPC and UTS namespaces of its own, so
// that ports are free, and that nothing of it outlives it.
package isolate

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// stageVar tells the program, when it executes itself, what it is then.
const stageVar = "CORACLE_CLUSTER_STAGE"

// Run runs f in namespaces of its own and returns the code to exit with. It executes the program
// again for that, twice, so it comes first in main. Our child, the parent of the process that calls
// f, is the new process namespace's init: it reaps what daemons leave behind, and all processes end
// with it.
func Run(f func() int) int {
	var err error
	switch stage := os.Getenv(stageVar); stage {
	case "":
		err = again("init", &syscall.SysProcAttr{
			Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS,
			Pdeathsig:  unix.SIGKILL,
		}, func(p *os.Process) (unix.WaitStatus, error) {
			state, err := p.Wait()
			if err != nil {
				return 0, err
			}
			return unix.WaitStatus(state.Sys().(syscall.WaitStatus)), nil
		})
	case "init":
		if err = furnish(); err == nil {
			err = again("run", nil, reap)
		}
	default:
		_ = os.Unsetenv(stageVar) // programs that f starts may do the same
		return f()
	}
	var code exitCode
	switch {
	case err == nil:
		return 0
	case !errors.As(err, &code):
		fmt.Fprintln(os.Stderr, "isolate:", err)
		return 1
	}
	return int(code)
}

// exitCode is what a stage ended with, if not 0.
type exitCode int

func (c exitCode) Error() string { return fmt.Sprintf("exit code %d", int(c)) }

// again executes this program for the next stage and waits for it. Signals that end a run reach it.
func again(stage string, attr *syscall.SysProcAttr, wait func(*os.Process) (unix.WaitStatus, error)) error {
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Args[0] = os.Args[0]
	cmd.Env = append(os.Environ(), stageVar+"="+stage)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = attr
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, unix.SIGINT, unix.SIGTERM, unix.SIGQUIT)
	defer signal.Stop(signals)
	if err := cmd.Start(); err != nil {
		if errors.Is(err, unix.EPERM) {
			return errors.New("namespaces can only be made by root")
		}
		return err
	}
	ended := make(chan struct{})
	defer close(ended)
	go func() {
		for {
			select {
			case s := <-signals:
				_ = cmd.Process.Signal(s)
			case <-ended:
				return
			}
		}
	}()
	status, err := wait(cmd.Process)
	switch {
	case err != nil:
		return err
	case status.Signaled():
		return exitCode(128 + int(status.Signal()))
	case status.ExitStatus() != 0:
		return exitCode(status.ExitStatus())
	}
	return nil
}

// reap waits for all processes that end until this one does.
func reap(p *os.Process) (unix.WaitStatus, error) {
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return 0, fmt.Errorf("wait: %w", err)
		case pid == p.Pid && (status.Exited() || status.Signaled()):
			return status, nil
		}
	}
}

// furnish fills the new namespaces: /proc is theirs, mounts are shared within and unseen outside,
// and loopback is up.
func furnish() error {
	for _, m := range []struct {
		source, target, fstype string
		flags                  uintptr
	}{
		{"", "/", "", unix.MS_REC | unix.MS_PRIVATE},
		{"proc", "/proc", "proc", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC},
		{"", "/", "", unix.MS_REC | unix.MS_SHARED},
	} {
		if err := unix.Mount(m.source, m.target, m.fstype, m.flags, ""); err != nil {
			return fmt.Errorf("mount %s: %w", m.target, err)
		}
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("socket: %w", err)
	}
	defer unix.Close(fd)
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	lo.SetUint16(unix.IFF_UP)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, lo); err != nil {
		return fmt.Errorf("link lo: %w", err)
	}
	return nil
}

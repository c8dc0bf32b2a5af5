package testkit

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// PID is the process that serves the socket now, 0 if there is none.
func (d *Daemon) PID() int {
	return SocketPID(d.Socket)
}

// SocketPID is the process that listens on a unix socket, 0 if none does.
func SocketPID(socket string) int {
	c, err := net.Dial("unix", socket)
	if err != nil {
		return 0
	}
	defer c.Close()
	raw, err := c.(*net.UnixConn).SyscallConn()
	if err != nil {
		return 0
	}
	pid := 0
	_ = raw.Control(func(fd uintptr) {
		if u, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			pid = int(u.Pid)
		}
	})
	return pid
}

// Shims are the shim processes. The keeper, the pods' inits and containers that do not
// execute their own program yet run the same binary.
func (d *Daemon) Shims() []int {
	return d.pids(ShimExe, func(argv []string) bool { return len(argv) > 1 && argv[1] == "serve" })
}

// Keepers are the keeper processes: one, if all is well. The process that forks a keeper has the
// same name until it ends, but no session of its own.
func (d *Daemon) Keepers() []int {
	named := d.pids(ShimExe, func(argv []string) bool { return argv[0] == "coracle-keeper" })
	return slices.DeleteFunc(named, func(pid int) bool {
		session, err := unix.Getsid(pid)
		return err != nil || session != pid
	})
}

// Starters returns the processes that clone containers for the shims.
func (d *Daemon) Starters() []int { return d.pids(starterExe, func([]string) bool { return true }) }

// Lazies are the processes that show layers which are pulled lazily: one at most.
func (d *Daemon) Lazies() []int { return d.pids(LazyExe, func([]string) bool { return true }) }

// Processes are all long-lived processes of the runtime, for leak.Scope and for
// measuring memory.
func (d *Daemon) Processes() []int {
	any := func([]string) bool { return true }
	found := append(d.pids(DaemonExe, any), d.pids(ShimExe, any)...)
	return append(append(found, d.pids(starterExe, any)...), d.Lazies()...)
}

// pids finds processes by executable and arguments. It relies on Isolate: another
// daemon's processes are not in sight.
func (d *Daemon) pids(exe string, match func(argv []string) bool) []int {
	var found []int
	for _, p := range Processes() {
		if p.Program() == exe && match(p.Args) {
			found = append(found, p.PID)
		}
	}
	return found
}

// Kill sends SIGKILL to a process and waits until it is gone.
func Kill(pid int) error { return signalAndWait(pid, syscall.SIGKILL, patience) }

// Terminate sends SIGTERM to coracled and waits for its end. Containers stay.
func (d *Daemon) Terminate() error {
	pid := d.PID()
	if pid == 0 {
		return errors.New("coracled is not running")
	}
	return signalAndWait(pid, syscall.SIGTERM, patience)
}

// signalAndWait waits on a pidfd, so it cannot mistake another process for this one.
func signalAndWait(pid int, sig syscall.Signal, limit time.Duration) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("pidfd of %d: %w", pid, err)
	}
	defer unix.Close(fd)
	if err := unix.PidfdSendSignal(fd, sig, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("signal %d to %d: %w", sig, pid, err)
	}
	end := time.Now().Add(limit)
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(time.Until(end).Milliseconds()))
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return fmt.Errorf("poll %d: %w", pid, err)
		case n == 1:
			return nil
		default:
			return fmt.Errorf("process %d still runs %v after signal %d", pid, limit, sig)
		}
	}
}

// WatchExit returns a channel that is closed when a process has ended.
func WatchExit(pid int) (<-chan struct{}, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, fmt.Errorf("pidfd of %d: %w", pid, err)
	}
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		defer unix.Close(fd)
		for {
			_, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1)
			if !errors.Is(err, unix.EINTR) {
				return
			}
		}
	}()
	return gone, nil
}

package runtimetest

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// Exit reaps a child and returns its exit status as a shell does. It fails if the child does not
// end: a test that waits forever reports nothing.
func Exit(pid int) (status int, err error) {
	if pid <= 0 {
		return 0, fmt.Errorf("wait for process %d: no such pid", pid)
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return 0, fmt.Errorf("wait for process %d: %w", pid, err)
	}
	defer unix.Close(fd)
	for deadline := time.Now().Add(patience); ; {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(time.Until(deadline).Milliseconds()))
		if n > 0 {
			break
		}
		if err != nil && !errors.Is(err, unix.EINTR) {
			return 0, fmt.Errorf("wait for process %d: %w", pid, err)
		}
		if !time.Now().Before(deadline) {
			return 0, fmt.Errorf("process %d does not end", pid)
		}
	}
	var ws unix.WaitStatus
	for {
		_, err := unix.Wait4(pid, &ws, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return 0, fmt.Errorf("wait for process %d: %w", pid, err)
		case ws.Signaled():
			return 128 + int(ws.Signal()), nil
		default:
			return ws.ExitStatus(), nil
		}
	}
}

package program

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// Process is a running zygote, a child of this process. It is os.Process with a pidfd from the
// beginning: package os forks another child first, to see whether the kernel can do that.
type Process struct {
	Pid   int
	pidfd int
}

// Kill kills it, whoever has its pid by now.
func (p *Process) Kill() error { return unix.PidfdSendSignal(p.pidfd, unix.SIGKILL, nil, 0) }

// waitTimeout limits Wait: a killed process may wait for something in the kernel.
const waitTimeout = 10 * time.Second

// Wait reaps the process, unless it has been reaped, and closes the descriptor. It may be called
// once. A process that does not end in time becomes a zombie later, until this process ends.
func (p *Process) Wait() error {
	defer unix.Close(p.pidfd)
	for deadline := time.Now().Add(waitTimeout); ; {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(p.pidfd), Events: unix.POLLIN}}, int(max(time.Until(deadline), 0)/time.Millisecond))
		if n > 0 {
			break
		}
		if err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		if time.Until(deadline) <= 0 {
			return fmt.Errorf("process %d has not ended", p.Pid)
		}
	}
	for {
		err := unix.Waitid(unix.P_PIDFD, p.pidfd, nil, unix.WEXITED, nil)
		if errors.Is(err, unix.ECHILD) {
			return nil
		}
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

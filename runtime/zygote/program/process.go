package program

import (
	"errors"

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

// Wait reaps it, if nobody else has, and gives the descriptor back. It may be called once.
func (p *Process) Wait() error {
	defer unix.Close(p.pidfd)
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

package program

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Process is a running zygote, a child of this process. It is os.Process with a pidfd from the
// beginning: package os forks another child first, to see whether the kernel can do that.
type Process struct {
	Pid   int
	pidfd int
	file  *os.File // has pidfd after Watch; nil before
}

// Kill kills the process. It cannot hit another one that got the same pid.
func (p *Process) Kill() error { return unix.PidfdSendSignal(p.pidfd, unix.SIGKILL, nil, 0) }

// Watch calls ended when the process has ended by itself. Until Wait, a goroutine, which needs no
// thread, waits for that. Watch may be called once, and before all methods but Kill.
func (p *Process) Watch(ended func()) error {
	if err := unix.SetNonblock(p.pidfd, true); err != nil { // otherwise the poller would not accept it
		return fmt.Errorf("watch process %d: %w", p.Pid, err)
	}
	p.file = os.NewFile(uintptr(p.pidfd), "pidfd")
	rc, err := p.file.SyscallConn()
	if err != nil {
		return fmt.Errorf("watch process %d: %w", p.Pid, err)
	}
	go func() {
		err := rc.Read(func(fd uintptr) bool {
			n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
			return err == nil && n > 0
		})
		if err == nil {
			ended()
		}
	}()
	return nil
}

// close closes the descriptor, which ends the goroutine of Watch.
func (p *Process) close() {
	if p.file != nil {
		_ = p.file.Close()
		return
	}
	_ = unix.Close(p.pidfd)
}

// waitTimeout limits Wait: a killed process may wait for something in the kernel.
const waitTimeout = 10 * time.Second

// Wait reaps the process, unless it has been reaped, and closes the descriptor. It may be called
// once. A process that does not end in time becomes a zombie later, until this process ends.
func (p *Process) Wait() error {
	defer p.close()
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

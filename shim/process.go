package shim

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/internal/transient"
	"github.com/coracle-project/coracle/runtime"
	"github.com/coracle-project/coracle/shim/pidfd"
)

// process is a started process: a container's init or an exec.
type process struct {
	pid       int
	startTime uint64
	pidfd     *os.File      // nil if it was gone before anyone had one
	remote    *remote       // nil if it is, or was, a child of ours
	exited    chan struct{} // closed when exit is set
	// left returns how the process ended if the keeper was its last parent; nil for a child of
	// ours.
	left func(pid int, startTime uint64) (code int32, ok bool)

	mu   sync.Mutex
	exit *exitState
}

// newProcess takes hold of a process that has just been started by us.
func newProcess(pid int) (*process, error) {
	f, err := pidfd.Open(pid)
	if err != nil {
		return nil, err
	}
	start, err := pidfd.StartTime(pid)
	if err != nil {
		// A child that ended at once is a zombie and has its stat; this is a real fault.
		f.Close()
		return nil, err
	}
	return &process{pid: pid, startTime: start, pidfd: f, exited: make(chan struct{})}, nil
}

// adoptProcess takes over a process that an earlier shim started. held is the pidfd that the keeper
// had, or nil. It fails only if descriptors or memory are used up.
func (h *hold) adoptProcess(engine runtime.Container, r processRecord, held *os.File) (*process, error) {
	p := &process{pid: r.PID, startTime: r.StartTime, pidfd: held, left: h.exit, exited: make(chan struct{})}
	if r.Exit == nil && held == nil && !isRemote(engine) {
		f, err := pidfd.OpenStarted(r.PID, r.StartTime)
		if transient.Is(err) {
			return nil, err
		}
		p.pidfd = f // nil: the process has ended
	}
	if r, ok := engine.(runtime.Remote); ok {
		p.remote = newRemote(r)
	}
	if r.Exit != nil {
		p.ended(*r.Exit)
	}
	return p, nil
}

func isRemote(engine runtime.Container) bool {
	_, is := engine.(runtime.Remote)
	return is
}

// wait returns when the process has ended, with its code. Only one caller may wait;
// it calls ended when others may know. ok is false if the process was let go of.
func (p *process) wait() (e exitState, ok bool) {
	if p.remote != nil {
		return p.remote.wait(p.pid)
	}
	code, err := int32(pidfd.Unknown), error(nil)
	if p.pidfd != nil {
		if code, err = pidfd.Wait(p.pidfd); err != nil {
			return exitState{}, false
		}
	}
	if code == pidfd.Unknown && p.left != nil {
		if told, ok := p.left(p.pid, p.startTime); ok {
			code = told
		}
	}
	return endOf(code), true
}

// reap waits for the end of a killed process and releases it. If the kernel does not end the
// process before ctx ends, it is reaped in the background.
func (p *process) reap(ctx context.Context) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = p.wait()
		p.close()
	}()
	select {
	case <-ended:
	case <-ctx.Done():
	}
}

// endOf is the state of a process that has just been found to have ended.
func endOf(code int32) exitState {
	if code == pidfd.Unknown {
		return exitState{Code: unknownExit, Unknown: true, At: time.Now()}
	}
	return exitState{Code: code, At: time.Now()}
}

// unknownExit is the exit code that is told when it cannot be known, as containerd has it.
const unknownExit = 255

func (p *process) ended(e exitState) {
	p.mu.Lock()
	p.exit = &e
	p.mu.Unlock()
	close(p.exited)
}

// exitState is nil while the process runs.
func (p *process) exitState() *exitState {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.exit
}

func (p *process) record() *processRecord {
	return &processRecord{PID: p.pid, StartTime: p.startTime, Exit: p.exitState()}
}

// signal cannot hit another process that got the pid later.
func (p *process) signal(sig unix.Signal) error {
	if p.remote != nil && p.exitState() == nil {
		return p.remote.signal(p.pid, sig)
	}
	if p.exitState() != nil || p.pidfd == nil {
		return fmt.Errorf("signal process %d: %w", p.pid, runtime.ErrNotRunning)
	}
	err := error(os.ErrClosed)
	withFD(p.pidfd, func(fd int) { err = unix.PidfdSendSignal(fd, sig, nil, 0) })
	if errors.Is(err, unix.ESRCH) || errors.Is(err, os.ErrClosed) {
		return fmt.Errorf("signal process %d: %w", p.pid, runtime.ErrNotRunning)
	}
	if err != nil {
		return fmt.Errorf("signal process %d: %w", p.pid, err)
	}
	return nil
}

func (p *process) close() {
	if p.pidfd != nil {
		p.pidfd.Close()
	}
	if p.remote != nil {
		p.remote.stop()
	}
}

package shim

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/internal/transient"
	"github.com/coracle-project/coracle/runtime"
	"github.com/coracle-project/coracle/shim/internal/rawfd"
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

// newProcess takes hold of a process that has just been started by us. One that it cannot hold is
// killed: it would run on, unknown to all. See errUnheld.
func newProcess(pid int) (*process, error) {
	f, err := pidfd.Open(pid)
	if err != nil {
		return nil, errors.Join(err, endChild(pid))
	}
	start, err := pidfd.StartTime(pid)
	if err != nil {
		// A child that ended at once is a zombie and has its stat; this is a real fault.
		f.Close()
		return nil, errors.Join(err, endChild(pid))
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
	rawfd.With(p.pidfd, func(fd int) { err = unix.PidfdSendSignal(fd, sig, nil, 0) })
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

package client

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/shim/pidfd"
)

// process is a process held by its pidfd, which still identifies it after its pid has been reused.
type process struct {
	pid int
	f   *os.File
}

// lockName is the file in a shim's state directory that the shim locks (flock(2)), from before it
// adopts containers until it ends. It contains the shim's pid and start time.
const lockName = "shim.lock"

// lockHolder returns the process that holds the lock of a shim's state directory. It returns nil if
// no process does, or if the shim's release has no lock.
func lockHolder(dir string) *process {
	f, err := os.OpenFile(filepath.Join(dir, lockName), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil
	}
	defer f.Close()
	text := make([]byte, 64)
	n, err := f.Read(text)
	if err != nil {
		return nil
	}
	var pid int
	var start uint64
	if _, err := fmt.Sscanf(string(text[:n]), "%d %d\n", &pid, &start); err != nil {
		return nil
	}
	// A damaged file must not identify another process. A shim that is just taking the lock waits
	// for this check.
	if unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB) == nil {
		return nil
	}
	p, err := pidfd.OpenStarted(pid, start)
	if err != nil {
		return nil
	}
	return &process{pid, p}
}

func closeProcesses(all []*process) {
	for _, p := range all {
		p.f.Close()
	}
}

// signal sends a signal to this process only, even if its pid has been reused. A process that has
// ended is not an error.
func (p *process) signal(sig unix.Signal) error {
	rc, err := p.f.SyscallConn()
	if err != nil {
		return err
	}
	if cerr := rc.Control(func(fd uintptr) { err = unix.PidfdSendSignal(int(fd), sig, nil, 0) }); cerr != nil {
		return cerr
	}
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	return err
}

// end sends a signal and waits until the process has ended or ctx ends.
func (p *process) end(ctx context.Context, sig unix.Signal) error {
	if err := p.signal(sig); err != nil {
		return fmt.Errorf("signal process %d: %w", p.pid, err)
	}
	if err := p.ended(ctx); err != nil {
		return fmt.Errorf("await end of process %d: %w", p.pid, err)
	}
	return nil
}

// ended returns when the process has ended, or with an error when ctx ends.
func (p *process) ended(ctx context.Context) error {
	if err := p.f.SetReadDeadline(time.Time{}); err != nil { // from an earlier wait
		return err
	}
	return pidfd.Ended(ctx, p.f)
}

// endProcess asks a process to end and waits for it.
func endProcess(ctx context.Context, pid int) error {
	f, err := pidfd.Open(pid)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return err
	}
	p := &process{pid, f}
	defer f.Close()
	return p.end(ctx, unix.SIGTERM)
}

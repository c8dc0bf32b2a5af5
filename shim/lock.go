package shim

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/shim/pidfd"
)

// LockName is the name of the lock file in a shim's state directory. Its first line is the
// holder's pid and start time (pidfd.StartTime); it may be empty if the disk was full.
const LockName = "shim.lock"

// LockPatience is how long a shim waits for the one before it to end.
const LockPatience = 10 * time.Second

// ErrLocked says that another shim has the state directory.
var ErrLocked = errors.New("another shim holds the state directory")

// Lock is the right to adopt and change what is in a state directory. It ends with the
// process: two shims that adopted the same containers would both write their logs.
type Lock struct {
	// The directory itself is locked too, because a file that is missing cannot be made on a
	// full disk. All descriptors are O_CLOEXEC: a flock(2) belongs to the open file, and a child
	// that kept it would keep the next shim out.
	dir, file *os.File
}

// LockState takes the lock of a state directory. While another process has it, LockState waits,
// at most for patience; then it fails with ErrLocked and names the holder.
func LockState(ctx context.Context, state string, patience time.Duration) (*Lock, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	dir, err := os.OpenFile(state, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, fmt.Errorf("lock state directory: %w", err)
	}
	if err := flock(ctx, dir); err != nil {
		return nil, lockFailed(state, err)
	}
	l := &Lock{dir: dir}
	path := filepath.Join(state, LockName)
	// O_NOFOLLOW, O_NONBLOCK: whatever has taken the file's place, opening it neither leads
	// elsewhere nor hangs. Without the file the lock of the directory has to do.
	l.file, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return l, nil
	}
	if err := flock(ctx, l.file); err != nil {
		l.Release()
		return nil, lockFailed(state, err)
	}
	l.sign()
	return l, nil
}

// sign writes down who has the lock. That is information only: it may fail on a full disk.
func (l *Lock) sign() {
	start, err := pidfd.StartTime(os.Getpid())
	if err != nil {
		return
	}
	text := fmt.Appendf(nil, "%d %d\n", os.Getpid(), start)
	if _, err := l.file.WriteAt(text, 0); err == nil {
		_ = l.file.Truncate(int64(len(text))) // after the write: a reader sees a whole first line
		return
	}
	_ = l.file.Truncate(0) // rather nothing than an earlier holder
}

// Release gives the lock up.
func (l *Lock) Release() {
	l.dir.Close()
	if l.file != nil {
		l.file.Close()
	}
}

// LockHolder reads who has signed the lock of a state directory last. ok is false if that is
// not known. The holder may have ended since.
func LockHolder(state string) (pid int, start uint64, ok bool) {
	// Neither a FIFO in its place nor a link may hang or lead astray who asks.
	f, err := os.OpenFile(filepath.Join(state, LockName), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return 0, 0, false
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return 0, 0, false
	}
	b := make([]byte, 64)
	m, _ := f.ReadAt(b, 0) // at the end it is io.EOF
	b = b[:m]
	line, _, whole := bytes.Cut(b, []byte("\n"))
	n, err := fmt.Sscanf(string(line), "%d %d", &pid, &start)
	return pid, start, whole && err == nil && n == 2
}

// flock takes an exclusive lock. It closes the file if it fails.
func flock(ctx context.Context, f *os.File) error {
	fd := int(f.Fd())
	err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
	if err == nil {
		return nil
	}
	if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
		f.Close()
		return fmt.Errorf("flock %s: %w", f.Name(), err)
	}
	// The call cannot be given up, so that this thread outlives a wait that was too short: by as
	// much as the holder, or as this process, which ends without the lock.
	locked := make(chan error, 1)
	go func() {
		err := unix.Flock(fd, unix.LOCK_EX)
		for errors.Is(err, unix.EINTR) {
			err = unix.Flock(fd, unix.LOCK_EX)
		}
		locked <- err
	}()
	select {
	case err = <-locked:
		if err != nil {
			f.Close()
			err = fmt.Errorf("flock %s: %w", f.Name(), err)
		}
		return err
	case <-ctx.Done():
		go func() {
			<-locked
			f.Close()
		}()
		return fmt.Errorf("%w: %w", ErrLocked, ctx.Err())
	}
}

// lockFailed says who has the lock, if that is why.
func lockFailed(state string, err error) error {
	err = fmt.Errorf("lock state directory %s: %w", state, err)
	if !errors.Is(err, ErrLocked) {
		return err
	}
	pid, start, ok := LockHolder(state)
	if !ok {
		return fmt.Errorf("%w; it has not written its pid into %s", err, LockName)
	}
	if now, serr := pidfd.StartTime(pid); serr != nil || now != start {
		return fmt.Errorf("%w; process %d, which took it last, has ended", err, pid)
	}
	name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid)) // it may end just now
	return fmt.Errorf("%w: process %d (%s)", err, pid, strings.TrimSpace(string(name)))
}

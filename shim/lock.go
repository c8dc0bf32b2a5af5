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

// LockName is the name of the lock file in a shim's state directory. Its first line is the holder's
// pid and start time (pidfd.StartTime). The file may be empty if the disk was full.
const LockName = "shim.lock"

// LockPatience is how long a shim waits for the previous one to end.
const LockPatience = 10 * time.Second

// ErrLocked means that another shim holds the state directory.
var ErrLocked = errors.New("another shim holds the state directory")

// Lock is the right to adopt the contents of a state directory and to change them. It ends with the
// process. Without it, two shims that adopted the same containers would both write their logs.
type Lock struct {
	// The directory itself is locked too, because a missing file cannot be created on a full disk.
	// All descriptors are O_CLOEXEC: a flock(2) belongs to the open file, so a child that inherited
	// it would lock out the next shim.
	dir, file *os.File
}

// LockState locks a state directory. While another process holds the lock, LockState waits, at most
// for patience. Then it fails with ErrLocked and names the holder.
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
	// With O_NOFOLLOW and O_NONBLOCK, opening a symlink or FIFO in the file's place neither follows
	// it nor hangs. Without the file, the directory's lock is enough.
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

// sign records the holder of the lock. It is for information only, and may fail on a full disk.
func (l *Lock) sign() {
	start, err := pidfd.StartTime(os.Getpid())
	if err != nil {
		return
	}
	text := fmt.Appendf(nil, "%d %d\n", os.Getpid(), start)
	if _, err := l.file.WriteAt(text, 0); err == nil {
		_ = l.file.Truncate(int64(len(text))) // after the write, so that a reader sees a whole first line
		return
	}
	_ = l.file.Truncate(0) // an empty file is better than an earlier holder
}

// Release releases the lock.
func (l *Lock) Release() {
	l.dir.Close()
	if l.file != nil {
		l.file.Close()
	}
}

// LockHolder reads which process last took the lock of a state directory. ok is false if that is
// unknown. The process may have ended since.
func LockHolder(state string) (pid int, start uint64, ok bool) {
	// O_NOFOLLOW, O_NONBLOCK: see LockState.
	f, err := os.OpenFile(filepath.Join(state, LockName), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return 0, 0, false
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return 0, 0, false
	}
	b := make([]byte, 64)
	m, _ := f.ReadAt(b, 0) // io.EOF at the end of the file
	b = b[:m]
	line, _, whole := bytes.Cut(b, []byte("\n"))
	n, err := fmt.Sscanf(string(line), "%d %d", &pid, &start)
	return pid, start, whole && err == nil && n == 2
}

// flock takes an exclusive lock. If it fails, it closes the file.
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
	// flock(2) cannot be cancelled. After a timeout this thread keeps waiting until the holder
	// ends, or until this process ends without the lock.
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

// lockFailed adds the holder to the error, if another process holds the lock.
func lockFailed(state string, err error) error {
	err = fmt.Errorf("lock state directory %s: %w", state, err)
	if !errors.Is(err, ErrLocked) {
		return err
	}
	pid, start, ok := LockHolder(state)
	if !ok {
		return fmt.Errorf("%w; its pid is not in %s", err, LockName)
	}
	if now, serr := pidfd.StartTime(pid); serr != nil || now != start {
		return fmt.Errorf("%w; process %d took it last and has ended", err, pid)
	}
	name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid)) // the process may be ending
	return fmt.Errorf("%w: process %d (%s)", err, pid, strings.TrimSpace(string(name)))
}

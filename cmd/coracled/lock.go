package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/cmd/coracled/config"
)

// errRunning means that another process has the directory.
var errRunning = errors.New("in use")

// dirLock is the right to a root or state directory. The kernel takes it back when
// the process ends, however it ends.
type dirLock struct{ file *os.File }

// lockBoth takes the state directory and the root, or says who has one (errRunning).
// Two daemons on one root with a state directory each would take each other's writable
// layers for leftovers, and delete them under running containers.
func lockBoth(c config.Config) (release func(), err error) {
	state, err := lockDir(c.State)
	if err != nil {
		return nil, err
	}
	root, err := lockDir(c.Root)
	if err != nil {
		state.release()
		return nil, err
	}
	// The state directory last: a purge that waits for it finds the root free.
	return func() { root.release(); state.release() }, nil
}

// A child that a daemon had forked when it was killed has its lock until it executes its program.
const (
	forkLimit = 5 * time.Second
	forkTick  = 2 * time.Millisecond
)

// lockDir takes the lock of a directory, or says who has it (errRunning).
func lockDir(dir string) (*dirLock, error) {
	for deadline := time.Now().Add(forkLimit); ; {
		f, err := openLock(dir)
		if err != nil {
			return nil, err
		}
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if errors.Is(err, unix.EWOULDBLOCK) {
			if errors.Is(unix.Kill(holder(f), 0), unix.ESRCH) && time.Now().Before(deadline) {
				_ = f.Close()
				<-time.After(forkTick)
				continue
			}
			err = fmt.Errorf("directory %s: %w by coracled with pid %d; give this one another --root and --state, or stop that one",
				dir, errRunning, holder(f))
		}
		if err != nil {
			_ = f.Close()
			return nil, err
		}
		if l, err := own(f); l != nil || err != nil {
			return l, err
		}
	}
}

// awaitDir takes the lock as soon as its holder ends, or gives up when ctx ends.
func awaitDir(ctx context.Context, dir string) (*dirLock, error) {
	for {
		f, err := openLock(dir)
		if err != nil {
			return nil, err
		}
		got := make(chan error, 1)
		// flock(2) cannot be given a deadline. On a timeout the purge fails and
		// the process ends, and this goroutine with it.
		go func() { got <- unix.Flock(int(f.Fd()), unix.LOCK_EX) }()
		select {
		case err := <-got:
			if err != nil {
				_ = f.Close()
				return nil, fmt.Errorf("lock %s: %w", f.Name(), err)
			}
			if l, err := own(f); l != nil || err != nil {
				return l, err
			}
		case <-ctx.Done():
			return nil, fmt.Errorf("lock %s: held by pid %d: %w", f.Name(), holder(f), ctx.Err())
		}
	}
}

func openLock(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock directory: %w", err)
	}
	return f, nil
}

// own writes our pid into the locked file for the one who finds it taken. It returns
// nil and closes the file if that has lost its name since it was opened, to a purge:
// its lock means nothing.
func own(f *os.File) (*dirLock, error) {
	opened, err := f.Stat()
	if err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("lock %s: %w", f.Name(), err)
	}
	if named, err := os.Stat(f.Name()); err != nil || !os.SameFile(opened, named) {
		_ = f.Close()
		return nil, nil
	}
	pid := strconv.Itoa(os.Getpid()) + "\n"
	// Overwrite the old pid first, because that needs no new page. The daemon must start even on a
	// full file system: otherwise nothing on it could be removed.
	if err := errors.Join(writeAt(f, pid), f.Truncate(int64(len(pid)))); err != nil && !errors.Is(err, unix.ENOSPC) &&
		!errors.Is(err, unix.EDQUOT) {
		_ = f.Close()
		return nil, fmt.Errorf("write %s: %w", f.Name(), err)
	}
	return &dirLock{f}, nil
}

func writeAt(f *os.File, s string) error {
	_, err := f.WriteAt([]byte(s), 0)
	return err
}

// holder reads who has the lock; 0 if it cannot be read.
func holder(f *os.File) int {
	var buf [32]byte
	n, _ := f.ReadAt(buf[:], 0)
	pid, _ := strconv.Atoi(strings.TrimSpace(string(buf[:n])))
	return pid
}

// release gives the lock back. The file stays, unless a purge removes it.
func (l *dirLock) release() { _ = l.file.Close() }

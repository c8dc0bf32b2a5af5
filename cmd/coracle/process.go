package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/internal/privatedir"
)

func lookPath(name string) (string, error) {
	path, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("%s is neither next to coracle nor on PATH: install it there", name)
	}
	return path, nil
}

// launch starts a program that outlives this one, in a session of its own, with its output
// appended to the file log.
func launch(log, program string, args ...string) (*exec.Cmd, error) {
	return launchWith(nil, log, program, args...)
}

// launchWith is launch with a gate, of which the program gets the far end as descriptor 3 and the
// end of the pipe as descriptor 4, nil for none.
func launchWith(g *gate, log, program string, args ...string) (*exec.Cmd, error) {
	if err := os.MkdirAll(filepath.Dir(log), 0o755); err != nil {
		return nil, err
	}
	out, err := os.OpenFile(log, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o640)
	if err != nil {
		return nil, err
	}
	defer func() { _ = out.Close() }()
	cmd := exec.Command(program, args...)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.Dir = "/"
	cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true}
	if g != nil {
		cmd.ExtraFiles = []*os.File{g.far, g.ordered}
		defer func() { _, _ = g.far.Close(), g.ordered.Close() }()
	}
	return cmd, cmd.Start()
}

// exit is closed when the process of cmd has ended, with its error in the returned function.
func exit(cmd *exec.Cmd) (<-chan struct{}, func() error) {
	done := make(chan struct{})
	var err error
	go func() {
		err = cmd.Wait()
		close(done)
	}()
	return done, func() error { return err }
}

// hold takes the lock of the file at path, for as long as the process lives, and writes its pid
// into it.
func hold(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	if err := errors.Join(f.Truncate(0), writeAt(f, strconv.Itoa(os.Getpid())+"\n")); err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

func writeAt(f *os.File, s string) error {
	_, err := f.WriteAt([]byte(s), 0)
	return err
}

// exclusive keeps other ups and downs of this place waiting until release is called. The error is
// fs.ErrNotExist if there is no such place.
func (p place) exclusive(ctx context.Context) (release func(), err error) {
	for {
		dir, err := os.Open(p.root)
		if err != nil {
			return nil, err
		}
		err = p.flockRoot(ctx, dir)
		if err == nil && p.isRoot(dir) {
			return func() { _ = dir.Close() }, nil
		}
		_ = dir.Close()
		if err != nil {
			return nil, err
		}
	}
}

// makeExclusive is exclusive for a place that is made, with further directories, if a purge has
// removed it meanwhile.
func (p place) makeExclusive(ctx context.Context, further ...string) (release func(), err error) {
	for {
		if err := privatedir.Make(p.root); err != nil {
			return nil, err
		}
		release, err := p.exclusive(ctx)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for _, dir := range further {
			if err := privatedir.Make(dir); err != nil {
				release()
				return nil, err
			}
		}
		return release, nil
	}
}

// flockRoot waits until no other process has the lock of the directory.
func (p place) flockRoot(ctx context.Context, dir *os.File) error {
	for {
		err := unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return fmt.Errorf("lock %s: %w", p.root, err)
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("another 'coracle up' or 'down' runs on %s: %w", p.root, ctx.Err())
		}
	}
}

// isRoot is whether dir is still the directory of the place. The process that had the lock may have
// removed it, and another process may have the lock of the one that is there now.
func (p place) isRoot(dir *os.File) bool {
	locked, err := dir.Stat()
	if err != nil {
		return false
	}
	now, err := os.Stat(p.root)
	return err == nil && os.SameFile(locked, now)
}

// holder returns the pid of the process that holds the lock of the file at path, 0 if none does. It
// looks for the one that the file names in /proc/locks: trying the lock, and even to look at the
// descriptor in /proc, would keep it, for that moment, from a process that is just being started.
func holder(path string) (int, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		return 0, nil //nolint:nilerr // no one has got as far as writing it
	}
	var file unix.Stat_t
	if err := unix.Stat(path, &file); err != nil {
		return 0, fmt.Errorf("stat %s: %w", path, err)
	}
	const tries = 10
	for try := 1; ; try++ {
		locks, whole, err := procLocks()
		if err != nil {
			return 0, err
		}
		// proc_locks(5): 1: FLOCK ADVISORY WRITE 1234 fe:00:5678 0 EOF. The device is not stat's on
		// every file system.
		for line := range strings.Lines(string(locks)) {
			f := strings.Fields(line)
			if len(f) > 5 && f[1] == "FLOCK" && f[4] == strconv.Itoa(pid) && strings.HasSuffix(f[5], ":"+strconv.FormatUint(file.Ino, 10)) {
				return pid, nil
			}
		}
		if whole || try == tries {
			return 0, nil
		}
	}
}

// procLocks returns /proc/locks, and whether that came in one piece. Between two reads an entry may
// be skipped: if one before it has gone.
func procLocks() (data []byte, whole bool, err error) {
	f, err := os.Open("/proc/locks")
	if err != nil {
		return nil, false, err
	}
	defer func() { _ = f.Close() }()
	buf := make([]byte, 64<<10) // the kernel gives a page of them, some 70
	for reads := 0; ; reads++ {
		n, err := f.Read(buf)
		if errors.Is(err, io.EOF) {
			return data, reads <= 1, nil
		}
		if err != nil {
			return nil, false, err
		}
		data = append(data, buf[:n]...)
	}
}

// end sends SIGTERM to a process and waits until it is gone, or ctx is.
func end(ctx context.Context, pid int) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("process %d: %w", pid, err)
	}
	defer func() { _ = unix.Close(fd) }()
	return endByPidfd(ctx, pid, fd)
}

// endByPidfd is end for a process whose pidfd is open.
func endByPidfd(ctx context.Context, pid, fd int) error {
	if err := unix.PidfdSendSignal(fd, unix.SIGTERM, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("process %d: %w", pid, err)
	}
	deadline, ok := ctx.Deadline()
	for {
		wait := -1
		if ok {
			wait = max(int(time.Until(deadline).Milliseconds()), 0)
		}
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, wait)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return err
		case n == 0:
			return fmt.Errorf("process %d has not ended: %w", pid, context.DeadlineExceeded)
		default:
			return nil
		}
	}
}

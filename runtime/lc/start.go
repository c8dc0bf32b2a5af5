package lc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/runtime"
	"github.com/coracle-project/coracle/runtime/internal/base"
)

// Start implements runtime.Container.
func (c *container) Start(ctx context.Context) error {
	if err := c.start(ctx); err != nil {
		return c.Fail("start", err)
	}
	return nil
}

func (c *container) start(ctx context.Context) error {
	init := c.Rec.Init
	if init.Pid == 0 {
		return runtime.ErrNotRunning
	}
	pidfd, err := unix.PidfdOpen(init.Pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return runtime.ErrNotRunning
	}
	if err != nil {
		return fmt.Errorf("pidfd_open %d: %w", init.Pid, err)
	}
	defer unix.Close(pidfd)
	// Asked before init can go on: afterwards a short-lived program may well
	// be dead, and that is no failure to start it.
	if !init.Alive() {
		return runtime.ErrNotRunning
	}
	var exe os.FileInfo
	if len(c.Rec.Poststart) > 0 {
		if exe, err = os.Stat(executable(init)); err != nil {
			return runtime.ErrNotRunning
		}
	}
	// A reader that does not block lets init's open succeed; without one,
	// init cannot write. No goroutine is left behind if init is dead.
	fifo, err := os.OpenFile(c.Gate, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if errors.Is(err, os.ErrNotExist) {
		return runtime.ErrRunning
	}
	if err != nil {
		return err
	}
	defer fifo.Close()
	err = awaitGo(ctx, fifo, pidfd, init.Pid)
	if errors.Is(err, runtime.ErrRunning) && !waits(init.Pid, fifo) {
		err = errors.Join(err, os.Remove(c.Gate)) // a Start was killed before it did
	}
	if err != nil {
		return err
	}
	if err := base.FaultStartReleased.At(ctx); err != nil {
		return err
	}
	if err := os.Remove(c.Gate); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if exe == nil {
		return nil
	}
	if err := awaitExec(ctx, init, exe); err != nil {
		return err
	}
	return c.RunPoststart(ctx)
}

// awaitExec waits until init, which had the executable before, has executed the user's
// program, or is dead. The kernel tells no one when that happens.
func awaitExec(ctx context.Context, init base.Process, before os.FileInfo) error {
	const pause = 500 * time.Microsecond
	for {
		now, err := os.Stat(executable(init))
		if err != nil || !os.SameFile(before, now) || !init.Alive() {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(pause):
		}
	}
}

func executable(p base.Process) string { return fmt.Sprintf("/proc/%d/exe", p.Pid) }

// awaitGo waits until init, whose pidfd is given, has written its byte.
// ErrNotRunning if it dies before, ErrRunning if another Start took the byte.
func awaitGo(ctx context.Context, fifo *os.File, pidfd, pid int) error {
	cancelled, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		return fmt.Errorf("eventfd: %w", err)
	}
	// The file must stay open until the callback cannot run any more, or the
	// write could go to another file that got its number.
	wake := os.NewFile(uintptr(cancelled), "start-cancelled")
	defer wake.Close()
	done := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(done)
		_, _ = wake.Write([]byte{1, 0, 0, 0, 0, 0, 0, 0})
	})
	defer func() {
		if !stop() {
			<-done
		}
	}()

	// Fd puts a file into blocking mode, so SyscallConn is used instead.
	raw, err := fifo.SyscallConn()
	if err != nil {
		return err
	}
	var result error
	err = raw.Control(func(fd uintptr) { result = pollGo(ctx, fifo, int(fd), pidfd, cancelled, pid) })
	return errors.Join(result, err)
}

// waits says whether init still has the FIFO, which libcontainer passes to it and closes before it
// executes the program. The program cannot have it. It could have the name that libcontainer gives
// init, by which one must go where the kernel shows no descriptors: without root, in a user
// namespace.
func waits(pid int, fifo *os.File) bool {
	gate, err := fifo.Stat()
	if err != nil {
		return false
	}
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	fds, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrPermission) {
		name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
		return err == nil && bytes.HasPrefix(name, []byte("runc:["))
	}
	return err == nil && slices.ContainsFunc(fds, func(fd os.DirEntry) bool {
		held, err := os.Stat(filepath.Join(dir, fd.Name()))
		return err == nil && os.SameFile(gate, held)
	})
}

func pollGo(ctx context.Context, gate *os.File, fifo, pidfd, cancelled, pid int) error {
	const look = 100 // milliseconds, at an init that was let go by a Start that was killed
	for {
		fds := []unix.PollFd{
			{Fd: int32(fifo), Events: unix.POLLIN},
			{Fd: int32(pidfd), Events: unix.POLLIN},
			{Fd: int32(cancelled), Events: unix.POLLIN},
		}
		n, err := unix.Poll(fds, look)
		if errors.Is(err, unix.EINTR) || n == 0 && waits(pid, gate) {
			continue
		}
		if err != nil {
			return fmt.Errorf("poll: %w", err)
		}
		if n == 0 {
			return readGo(fifo, false)
		}
		if fds[0].Revents != 0 || fds[1].Revents != 0 {
			return readGo(fifo, fds[1].Revents != 0)
		}
		if fds[2].Revents != 0 {
			return context.Cause(ctx)
		}
	}
}

// readGo reads after something happened. A dead init may have written before it
// died, also between poll's looks at the two descriptors.
func readGo(fifo int, dead bool) error {
	var one [1]byte
	for {
		n, err := unix.Read(fifo, one[:])
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil && !errors.Is(err, unix.EAGAIN):
			return fmt.Errorf("read exec fifo: %w", err)
		case n == 1:
			return nil
		case dead:
			return runtime.ErrNotRunning
		default:
			return runtime.ErrRunning
		}
	}
}

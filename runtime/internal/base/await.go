package base

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/internal/kernfile"
	"github.com/coracle-project/coracle/runtime/internal/stuck"
)

// AwaitExit waits until the process behind a pidfd is dead or ctx ends.
func AwaitExit(ctx context.Context, pidfd int) error { return await(ctx, []int{pidfd}) }

// AwaitExits waits until all processes behind the pidfds are dead (reaped or
// not), until ctx ends or stuck.Patience is over. It leaves the file descriptors open.
func AwaitExits(ctx context.Context, pidfds []int) error {
	ctx, cancel := context.WithTimeoutCause(ctx, stuck.Patience, stuck.ErrAlive)
	defer cancel()
	return await(ctx, pidfds)
}

func await(ctx context.Context, pidfds []int) error {
	// poll(2) knows no contexts; this is how late a cancellation may be noticed.
	const slice = 50 * time.Millisecond
	waiting := make([]unix.PollFd, len(pidfds))
	for i, fd := range pidfds {
		waiting[i] = unix.PollFd{Fd: int32(fd), Events: unix.POLLIN}
	}
	for len(waiting) > 0 {
		if ctx.Err() != nil {
			return fmt.Errorf("%d processes did not die, the first is %s: %w", len(waiting), stuck.Describe(pidOf(waiting[0].Fd)),
				context.Cause(ctx))
		}
		if _, err := unix.Poll(waiting, int(slice/time.Millisecond)); err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("poll: %w", err)
		}
		left := waiting[:0]
		for _, p := range waiting {
			if p.Revents == 0 {
				left = append(left, p)
			}
		}
		waiting = left
	}
	return nil
}

// pidOf returns the pid behind a pidfd, 0 if it is unknown.
func pidOf(pidfd int32) (pid int) {
	info, err := kernfile.Read(fmt.Sprintf("/proc/self/fdinfo/%d", pidfd))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(info)) {
		if _, err := fmt.Sscanf(line, "Pid: %d", &pid); err == nil {
			return max(pid, 0)
		}
	}
	return 0
}

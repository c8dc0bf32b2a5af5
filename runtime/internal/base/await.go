package base

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// AwaitExits waits until all processes behind the pidfds are dead (reaped or
// not). It leaves the file descriptors open.
func AwaitExits(ctx context.Context, pidfds []int) error {
	// poll(2) knows no contexts; this is how late a cancellation may be noticed.
	const slice = 50 * time.Millisecond
	waiting := make([]unix.PollFd, len(pidfds))
	for i, fd := range pidfds {
		waiting[i] = unix.PollFd{Fd: int32(fd), Events: unix.POLLIN}
	}
	for len(waiting) > 0 {
		if ctx.Err() != nil {
			return fmt.Errorf("%d processes did not die: %w", len(waiting), context.Cause(ctx))
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

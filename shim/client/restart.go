package client

import (
	"context"
	"errors"
	"fmt"

	task "github.com/containerd/containerd/api/runtime/task/v3"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/shim/pidfd"
)

// RestartShim makes a shim end after the calls in progress, and returns when the next shim answers.
// Containers keep running. name is "node", or a pod's id with ScopePod. It returns ErrNotFound if
// there is no such shim.
func (c *Client) RestartShim(ctx context.Context, name string) error {
	if err := c.restartShim(ctx, name); err != nil {
		return fmt.Errorf("restart shim %s: %w", name, err)
	}
	return nil
}

// ShimVersion is the version of the program that a shim runs. It returns ErrNotFound if there is no
// such shim.
func (c *Client) ShimVersion(ctx context.Context, name string) (version string, err error) {
	c.mu.Lock()
	l := c.links[name]
	c.mu.Unlock()
	if l == nil {
		return "", ErrNotFound
	}
	err = l.again(ctx, func(ctx context.Context, k *conn) error {
		res, err := k.task.Connect(ctx, &task.ConnectRequest{})
		version = res.GetVersion()
		return err
	})
	return version, err
}

func (c *Client) restartShim(ctx context.Context, name string) error {
	c.mu.Lock()
	l := c.links[name]
	c.mu.Unlock()
	if l == nil {
		return ErrNotFound
	}
	// The keeper starts the next shim with the command line given here.
	if err := c.ensure(ctx, l); err != nil {
		return err
	}
	old, err := answering(ctx, l)
	if err != nil {
		return err
	}
	f, err := pidfd.Open(old)
	if err != nil && !errors.Is(err, unix.ESRCH) {
		return err
	}
	if err == nil {
		defer f.Close()
		// The process may have ended while the pidfd was opened. An answer from the same pid proves
		// that the pidfd is right.
		now, err := answering(ctx, l)
		if err != nil {
			return err
		}
		if now == old {
			if err := unix.PidfdSendSignal(int(f.Fd()), unix.SIGTERM, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("process %d: %w", old, err)
			}
			if err := pidfd.Ended(ctx, f); err != nil {
				return fmt.Errorf("await end of process %d: %w", old, err)
			}
		}
	}
	now, err := answering(ctx, l)
	if err == nil && now == old {
		err = fmt.Errorf("process %d still answers", old)
	}
	c.observe(l) // so that Shims lists the new process
	return err
}

// answering returns the pid of the shim that answers.
func answering(ctx context.Context, l *link) (pid int, err error) {
	err = l.again(ctx, func(ctx context.Context, k *conn) error {
		res, err := k.task.Connect(ctx, &task.ConnectRequest{})
		pid = int(res.GetShimPid())
		return err
	})
	return pid, err
}

package engine

import (
	"context"
	"errors"
	"fmt"
	"os"

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
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	if !c.Rec.Init.Alive() {
		return runtime.ErrNotRunning
	}
	// Init has the FIFO open until it executes its program, so opening it waits for no one.
	gate, err := unix.Open(c.Gate, unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	switch {
	case errors.Is(err, unix.ENOENT):
		return runtime.ErrRunning
	case errors.Is(err, unix.ENXIO):
		return c.noReader()
	case err != nil:
		return fmt.Errorf("open %s: %w", c.Gate, err)
	}
	defer unix.Close(gate)
	// Of two Starts at once, one is the first.
	if err := unix.Flock(gate, unix.LOCK_EX); err != nil {
		return fmt.Errorf("lock %s: %w", c.Gate, err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(gate, &st); err != nil {
		return fmt.Errorf("look at %s: %w", c.Gate, err)
	}
	if st.Nlink == 0 {
		return runtime.ErrRunning
	}
	if err := c.open(ctx, gate); err != nil {
		return err
	}
	if len(c.Rec.Poststart) == 0 {
		return nil
	}
	if err := executed(ctx, gate); err != nil {
		return err
	}
	return c.RunPoststart(ctx)
}

// State implements runtime.Container.
func (c *container) State(ctx context.Context) (runtime.State, error) {
	if err := c.finishStart(); err != nil {
		return runtime.State{}, c.Fail("get state of", err)
	}
	return c.Container.State(ctx)
}

// finishStart removes the gate if init has been released: the Start that released it was killed
// before it removed the gate. With the gate, the container would look like one that waits, and its
// program could run twice.
func (c *container) finishStart() error {
	gate, err := unix.Open(c.Gate, unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENXIO) && !c.Rec.Init.Alive():
		return nil
	case err != nil && !errors.Is(err, unix.ENXIO):
		return fmt.Errorf("open %s: %w", c.Gate, err)
	case err == nil:
		unread, err := unix.IoctlGetInt(gate, unix.TIOCINQ)
		unix.Close(gate)
		if err != nil || unread == 0 {
			return err // it waits
		}
	}
	if err := os.Remove(c.Gate); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// executed waits until init has executed its program, or ended: then no one has the gate open
// for reading (poll(2), POLLERR).
func executed(ctx context.Context, gate int) error {
	const look = 100 // milliseconds, at whether the context has ended
	for ctx.Err() == nil {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(gate)}}, look)
		if n > 0 {
			return nil
		}
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("wait for init's program: %w", err)
		}
	}
	return context.Cause(ctx)
}

// noReader is what a gate means that no one waits at: init is dead, or a Start was killed
// after it had let it go.
func (c *container) noReader() error {
	if !c.Rec.Init.Alive() {
		return runtime.ErrNotRunning
	}
	if err := os.Remove(c.Gate); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return runtime.ErrRunning
}

// open runs the startContainer hooks and lets init go.
func (c *container) open(ctx context.Context, gate int) error {
	if err := c.startHooks(ctx); err != nil {
		return err
	}
	if _, err := unix.Write(gate, []byte{1}); errors.Is(err, unix.EPIPE) {
		return runtime.ErrNotRunning
	} else if err != nil {
		return fmt.Errorf("let init go: %w", err)
	}
	if err := base.FaultStartReleased.At(ctx); err != nil {
		return err
	}
	if err := os.Remove(c.Gate); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

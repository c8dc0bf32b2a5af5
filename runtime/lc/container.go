package lc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/runtime"
)

// statusPaused is runc's addition to the statuses of the runtime spec.
const statusPaused specs.ContainerState = "paused"

// container is a handle. It holds nothing that changes, so any number of handles
// of one container can be used side by side: what is true is asked of the kernel.
type container struct {
	engine *Engine
	rec    *record
}

var _ runtime.Container = (*container)(nil)

func (c *container) ID() string  { return c.rec.ID }
func (c *container) dir() string { return c.engine.containerDir(c.rec.ID) }

// libDir is libcontainer's directory of this container.
func (c *container) libDir() string { return filepath.Join(c.dir(), c.rec.ID) }

func (c *container) fail(verb string, err error) error {
	return fmt.Errorf("%s container %s: %w", verb, c.rec.ID, err)
}

// Pid implements runtime.Container.
func (c *container) Pid() int {
	if !c.rec.Init.alive() {
		return 0
	}
	return c.rec.Init.Pid
}

// State implements runtime.Container.
func (c *container) State(context.Context) (runtime.State, error) {
	status, err := c.status()
	if err != nil {
		return runtime.State{}, c.fail("get state of", err)
	}
	return c.state(status), nil
}

func (c *container) state(status specs.ContainerState) runtime.State {
	s := runtime.State{Created: c.rec.Created, State: specs.State{
		Version: specs.Version, ID: c.rec.ID, Status: status,
		Bundle: c.rec.Bundle, Annotations: c.rec.Annotations,
	}}
	if status != specs.StateStopped {
		s.Pid = c.rec.Init.Pid
	}
	return s
}

func (c *container) status() (specs.ContainerState, error) {
	if c.rec.Init.Pid == 0 {
		if c.rec.Creator.alive() {
			return specs.StateCreating, nil
		}
		return specs.StateStopped, nil
	}
	if !c.rec.Init.alive() {
		return specs.StateStopped, nil
	}
	if _, err := os.Lstat(c.fifo()); err == nil {
		return specs.StateCreated, nil
	} else if !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	cgm, err := c.rec.cgroupManager()
	if err != nil {
		return "", err
	}
	freezer, err := cgm.GetFreezerState()
	if err != nil {
		return "", err
	}
	if freezer == cgroups.Frozen {
		return statusPaused, nil
	}
	return specs.StateRunning, nil
}

// Signal implements runtime.Container.
func (c *container) Signal(_ context.Context, sig syscall.Signal) error {
	if err := c.rec.Init.signal(sig); err != nil {
		return c.fail("signal", err)
	}
	if sig == unix.SIGKILL {
		c.rec.thaw()
	}
	return nil
}

// signal sends sig through a pidfd, so that a process which got the pid after
// ours was reaped is never hit.
func (p process) signal(sig syscall.Signal) error {
	if p.Pid <= 0 {
		return runtime.ErrNotRunning
	}
	fd, err := unix.PidfdOpen(p.Pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return runtime.ErrNotRunning
	}
	if err != nil {
		return fmt.Errorf("pidfd_open %d: %w", p.Pid, err)
	}
	defer unix.Close(fd)
	if !p.alive() {
		return runtime.ErrNotRunning
	}
	if err := unix.PidfdSendSignal(fd, sig, nil, 0); errors.Is(err, unix.ESRCH) {
		return runtime.ErrNotRunning
	} else if err != nil {
		return fmt.Errorf("send signal %d to process %d: %w", int(sig), p.Pid, err)
	}
	return nil
}

// Pause implements runtime.Container.
func (c *container) Pause(context.Context) error {
	status, err := c.status()
	if err == nil && status != specs.StateRunning && status != statusPaused {
		err = runtime.ErrNotRunning
	}
	if err == nil {
		err = c.rec.freeze(cgroups.Frozen)
	}
	if err != nil {
		return c.fail("pause", err)
	}
	return nil
}

// Resume implements runtime.Container. Resuming what is not paused does nothing.
func (c *container) Resume(context.Context) error {
	if !c.rec.Init.alive() {
		return c.fail("resume", runtime.ErrNotRunning)
	}
	if err := c.rec.freeze(cgroups.Thawed); err != nil {
		return c.fail("resume", err)
	}
	return nil
}

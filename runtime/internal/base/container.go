package base

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/runtime"
)

const statusPaused = runtime.StatusPaused

// Container is a handle, runtime.Container but for Start and Exec. It holds nothing that
// changes, so any number of handles of one container can be used side by side: what is
// true is asked of the kernel.
type Container struct {
	Store *Store
	Rec   *Record
	// Gate is a file that exists from Create until Start.
	Gate string
}

// ID implements runtime.Container.
func (c *Container) ID() string { return c.Rec.ID }

// Dir is the container's directory.
func (c *Container) Dir() string { return c.Store.ContainerDir(c.Rec.ID) }

// Fail says which container an error is about.
func (c *Container) Fail(verb string, err error) error {
	return fmt.Errorf("%s container %s: %w", verb, c.Rec.ID, err)
}

// Pid implements runtime.Container.
func (c *Container) Pid() int {
	if !c.Rec.Init.Alive() {
		return 0
	}
	return c.Rec.Init.Pid
}

// State implements runtime.Container.
func (c *Container) State(context.Context) (runtime.State, error) {
	status, err := c.Status()
	if err != nil {
		return runtime.State{}, c.Fail("get state of", err)
	}
	return c.StateAs(status), nil
}

// StateAs is the state with another status.
func (c *Container) StateAs(status specs.ContainerState) runtime.State {
	s := runtime.State{Created: c.Rec.Created, State: specs.State{
		Version: specs.Version, ID: c.Rec.ID, Status: status,
		Bundle: c.Rec.Bundle, Annotations: c.Rec.Annotations,
	}}
	if status != specs.StateStopped {
		s.Pid = c.Rec.Init.Pid
	}
	return s
}

// Status is what State says.
func (c *Container) Status() (specs.ContainerState, error) {
	if c.Rec.Init.Pid == 0 {
		if c.Rec.Creator.Alive() {
			return specs.StateCreating, nil
		}
		return specs.StateStopped, nil
	}
	if !c.Rec.Init.Alive() {
		return specs.StateStopped, nil
	}
	if _, err := os.Lstat(c.Gate); err == nil {
		return specs.StateCreated, nil
	} else if !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	cgm, err := c.Rec.CgroupManager()
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
func (c *Container) Signal(_ context.Context, sig syscall.Signal) error {
	if err := c.Rec.Init.Signal(sig); err != nil {
		return c.Fail("signal", err)
	}
	if sig == unix.SIGKILL {
		if err := c.Rec.thaw(); err != nil {
			return c.Fail("thaw", err)
		}
	}
	return nil
}

// Signal sends sig through a pidfd, so that a process which got the pid after
// ours was reaped is never hit.
func (p Process) Signal(sig syscall.Signal) error {
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
	if !p.Alive() {
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
func (c *Container) Pause(ctx context.Context) error {
	status, err := c.Status()
	if err == nil && status != specs.StateRunning && status != statusPaused {
		err = runtime.ErrNotRunning
	}
	if err == nil {
		err = c.Rec.freezePatiently(ctx)
	}
	if err != nil {
		return c.Fail("pause", err)
	}
	return nil
}

// Resume implements runtime.Container. Resuming what is not paused does nothing.
func (c *Container) Resume(context.Context) error {
	if !c.Rec.Init.Alive() {
		return c.Fail("resume", runtime.ErrNotRunning)
	}
	if err := c.Rec.freeze(cgroups.Thawed); err != nil {
		return c.Fail("resume", err)
	}
	return nil
}

// MayExec says whether the container's status allows a further process: ErrNotRunning if not.
func (c *Container) MayExec(opts runtime.ExecOptions) error {
	status, err := c.Status()
	if err != nil {
		return err
	}
	switch {
	case status == specs.StateRunning:
	case status == specs.StateCreated && opts.InCreated:
	case status == runtime.StatusPaused && opts.IgnorePaused:
	default:
		return fmt.Errorf("%w: it is %s", runtime.ErrNotRunning, status)
	}
	return nil
}

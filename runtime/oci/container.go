package oci

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/runtime"
	"github.com/coracle-project/coracle/runtime/internal/base"
	"github.com/coracle-project/coracle/runtime/validate"
)

// container is a handle, as base.Container is.
type container struct {
	base.Container
	engine *Engine
	own    own
}

var _ runtime.Container = (*container)(nil)

func (e *Engine) container(rec *base.Record, o own) *container {
	c := &container{Container: base.Container{Store: e.store, Rec: rec}, engine: e, own: o}
	c.Gate = filepath.Join(c.Dir(), "gate")
	return c
}

// do runs a command that has no streams.
func (c *container) do(ctx context.Context, args ...string) ([]byte, error) {
	k, err := c.newCommand()
	if err != nil {
		return nil, err
	}
	defer k.close()
	return k.run(ctx, args...)
}

// Start implements runtime.Container.
func (c *container) Start(ctx context.Context) error {
	if err := c.start(ctx); err != nil {
		return c.Fail("start", err)
	}
	return nil
}

func (c *container) start(ctx context.Context) error {
	s, err := c.State(ctx)
	if err != nil {
		return err
	}
	switch s.Status {
	case specs.StateCreated:
	case specs.StateStopped:
		return runtime.ErrNotRunning
	default:
		return runtime.ErrRunning
	}
	if _, err := c.do(ctx, "start", c.ID()); err != nil {
		if !c.Rec.Init.Alive() {
			return fmt.Errorf("%w: %w", runtime.ErrNotRunning, err)
		}
		return err
	}
	if err := faultOciStarted.At(ctx); err != nil {
		return err
	}
	return os.Remove(c.Gate)
}

// State implements runtime.Container. Between the command's start and our note of it only the
// command knows.
func (c *container) State(ctx context.Context) (runtime.State, error) {
	status, err := c.Status()
	if err == nil && status == specs.StateCreated {
		status, err = c.asked(ctx)
		if err == nil && status == specs.StateRunning {
			err = os.Remove(c.Gate) // a Start was killed before it did; others check the gate
			if errors.Is(err, fs.ErrNotExist) {
				err = nil
			}
		}
	}
	if err != nil {
		return runtime.State{}, c.Fail("get state of", err)
	}
	return c.StateAs(status), nil
}

// asked is the status as the command tells it (runtime.md#state).
func (c *container) asked(ctx context.Context) (specs.ContainerState, error) {
	out, err := c.do(ctx, "state", c.ID())
	if err != nil {
		return "", err
	}
	var s specs.State
	if err := json.Unmarshal(out, &s); err != nil {
		return "", fmt.Errorf("%s state: %w", c.own.Command, err)
	}
	return s.Status, nil
}

// Exec implements runtime.Container.
func (c *container) Exec(ctx context.Context, p *specs.Process, opts runtime.ExecOptions) (pid int, err error) {
	if pid, err = c.exec(ctx, p, opts); err != nil {
		return 0, c.Fail("exec in", err)
	}
	return pid, nil
}

func (c *container) exec(ctx context.Context, p *specs.Process, opts runtime.ExecOptions) (int, error) {
	if err := validate.Process(p); err != nil {
		return 0, err
	}
	if err := c.MayExec(opts); err != nil {
		return 0, err
	}
	if err := c.engine.orphans.watch(); err != nil {
		return 0, err
	}
	k, err := c.newCommand()
	if err != nil {
		return 0, err
	}
	defer k.close()
	b, err := json.Marshal(p)
	if err != nil {
		return 0, err
	}
	if err := os.WriteFile(k.file("process"), b, 0o600); err != nil {
		return 0, err
	}
	args := []string{"exec", "--detach", "--process", k.file("process"), "--pid-file", k.file("pid")}
	for controller, path := range opts.Cgroups {
		if controller != "" {
			path = controller + ":" + path
		}
		args = append(args, "--cgroup", path)
	}
	if opts.IgnorePaused {
		args = append(args, "--ignore-paused")
	}
	proc, err := k.start(ctx, opts.Stdio, args, c.ID())
	if err != nil {
		if !c.Rec.Init.Alive() {
			return 0, fmt.Errorf("%w: %w", runtime.ErrNotRunning, err)
		}
		return 0, err
	}
	return proc.Pid, nil
}

// Signal implements runtime.Container. The command knows best: its pid may be that of a
// sandbox.
func (c *container) Signal(ctx context.Context, sig syscall.Signal) error {
	if !c.Rec.Init.Alive() {
		return c.Fail("signal", runtime.ErrNotRunning)
	}
	_, err := c.do(ctx, "kill", c.ID(), strconv.Itoa(int(sig)))
	switch {
	case err == nil && sig == unix.SIGKILL:
		return c.thaw(ctx)
	case err == nil:
		return nil
	case !c.Rec.Init.Alive():
		err = runtime.ErrNotRunning
	}
	return c.Fail("signal", err)
}

// thaw lets a killed process of a paused container die.
func (c *container) thaw(ctx context.Context) error {
	if status, err := c.Status(); err != nil || status != runtime.StatusPaused {
		return nil
	}
	if _, err := c.do(ctx, "resume", c.ID()); err != nil && c.Rec.Init.Alive() {
		return c.Fail("resume", err)
	}
	return nil
}

// Pause implements runtime.Container.
func (c *container) Pause(ctx context.Context) error {
	status, err := c.Status()
	if err == nil && status != specs.StateRunning && status != runtime.StatusPaused {
		err = runtime.ErrNotRunning
	}
	if err == nil && status == specs.StateRunning {
		_, err = c.do(ctx, "pause", c.ID())
	}
	if err != nil {
		return c.Fail("pause", err)
	}
	return nil
}

// Resume implements runtime.Container. Resuming what is not paused does nothing.
func (c *container) Resume(ctx context.Context) error {
	status, err := c.Status()
	if err == nil && status == specs.StateStopped {
		err = runtime.ErrNotRunning
	}
	if err == nil && status == runtime.StatusPaused {
		_, err = c.do(ctx, "resume", c.ID())
	}
	if err != nil {
		return c.Fail("resume", err)
	}
	return nil
}

// Update implements runtime.Container.
func (c *container) Update(ctx context.Context, r *specs.LinuxResources) error {
	if err := c.update(ctx, r); err != nil {
		return c.Fail("update", err)
	}
	return nil
}

func (c *container) update(ctx context.Context, r *specs.LinuxResources) error {
	if err := validate.Resources(r); err != nil {
		return err
	}
	if !c.Rec.Init.Alive() {
		return runtime.ErrNotRunning
	}
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	k, err := c.newCommand()
	if err != nil {
		return err
	}
	defer k.close()
	if err := os.WriteFile(k.file("resources"), b, 0o600); err != nil {
		return err
	}
	_, err = k.run(ctx, "update", "--resources", k.file("resources"), c.ID())
	return err
}

// Delete implements runtime.Container.
func (c *container) Delete(ctx context.Context, opts runtime.DeleteOptions) error {
	if err := c.delete(ctx, opts); err != nil {
		return c.Fail("delete", err)
	}
	return nil
}

func (c *container) delete(ctx context.Context, opts runtime.DeleteOptions) error {
	now, err := c.Store.Load(c.ID())
	if errors.Is(err, runtime.ErrNotFound) || err == nil && !now.Created.Equal(c.Rec.Created) {
		return nil // it is gone, or another has its id
	}
	if err != nil {
		return err
	}
	status, err := c.Status()
	if err != nil && !opts.Force {
		return err
	}
	if !opts.Force && status != specs.StateStopped && status != specs.StateCreated {
		return runtime.ErrRunning
	}
	return c.remove(ctx)
}

// remove has the command delete what it knows, and then whatever is left, record last. The
// processes are killed before, because commands wait for init's end by looking every 100 ms.
func (c *container) remove(ctx context.Context) error {
	if err := c.SignalAll(ctx, unix.SIGKILL); err != nil && !errors.Is(err, runtime.ErrNotRunning) {
		return err
	}
	_, err := c.do(ctx, "delete", "--force", c.ID())
	if err != nil && c.known() {
		return err
	}
	if err := faultOciDeleted.At(ctx); err != nil {
		return err
	}
	return c.Remove(ctx)
}

// known says whether the command has a container of this id: one that it has not made, or has
// deleted already, cannot be deleted.
func (c *container) known() bool {
	_, err := os.Stat(filepath.Join(c.engine.rootOf(c.own.Command), c.ID()))
	return err == nil
}

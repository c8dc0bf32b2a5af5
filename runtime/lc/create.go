package lc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/opencontainers/cgroups/manager"
	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runc/libcontainer/configs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/runtime"
	"github.com/coracle-project/coracle/runtime/internal/base"
	"github.com/coracle-project/coracle/runtime/internal/stuck"
	"github.com/coracle-project/coracle/runtime/validate"
)

// undoTimeout bounds the cleaning up after a failed Create, which must not
// depend on the caller's context.
const undoTimeout = 10 * time.Second

// Create implements runtime.Engine.
func (e *Engine) Create(ctx context.Context, id string, spec *specs.Spec, opts runtime.CreateOptions) (runtime.Container, error) {
	start := func(lib *libcontainer.Container, init *libcontainer.Process) error { return lib.Start(init) }
	c, err := e.create(ctx, id, spec, opts, start)
	if err != nil {
		return nil, fmt.Errorf("create container %s: %w", id, err)
	}
	return c, nil
}

// starter makes a container's processes: init, or those that were saved.
type starter func(*libcontainer.Container, *libcontainer.Process) error

func (e *Engine) create(ctx context.Context, id string, spec *specs.Spec, opts runtime.CreateOptions, start starter) (*container, error) {
	if err := runtime.ValidateID(id); err != nil {
		return nil, err
	}
	if err := validate.SpecOnHostMounts(spec, opts.Bundle); err != nil {
		return nil, err
	}
	cfg, err := e.libcontainerConfig(id, spec, opts)
	if err != nil {
		return nil, err
	}
	proc, err := libcontainerProcess(spec.Process, opts.Stdio)
	if err != nil {
		return nil, err
	}
	proc.Init = true
	cgm, err := manager.New(cfg.Cgroups)
	if err != nil {
		return nil, err
	}
	if err := base.MustBeEmpty(cgm.GetPaths()); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}

	e.warmer.Keep()
	self, err := base.Identify(os.Getpid())
	if err != nil {
		return nil, err
	}
	c := e.container(&base.Record{
		Engine: Name, ID: id, Bundle: opts.Bundle, Annotations: spec.Annotations,
		Creator: self, Created: time.Now().UTC(),
		Cgroup: base.NameOf(cfg.Cgroups), CgroupPaths: cgm.GetPaths(),
	})
	if h := spec.Hooks; h != nil {
		c.Rec.Poststart, c.Rec.Poststop = h.Poststart, h.Poststop
	}
	if err := e.store.Claim(c.Rec); err != nil {
		return nil, err
	}
	e.children.begin()
	if err := c.build(ctx, cfg, proc, start); err != nil {
		err = errors.Join(err, c.undo())
		e.children.done(base.Process{})
		return nil, err
	}
	e.children.done(c.Rec.Init)
	return c, nil
}

// build makes the container and records its init.
func (c *container) build(ctx context.Context, cfg *configs.Config, proc *libcontainer.Process, start starter) error {
	if err := base.FaultCreateClaimed.At(ctx); err != nil {
		return err
	}
	lib, err := libcontainer.Create(c.Dir(), c.Rec.ID, cfg)
	if err != nil {
		return err
	}
	// libcontainer knows no contexts. Killing what it has started makes it
	// give up.
	stop := context.AfterFunc(ctx, func() { _ = c.Rec.SignalPids(ctx, unix.SIGKILL) })
	err = start(lib, proc)
	if err == nil {
		err = c.identifyInit(proc)
	}
	if !stop() && ctx.Err() != nil {
		err = errors.Join(context.Cause(ctx), err)
	}
	if err != nil {
		return err
	}
	if err := base.FaultCreateBuilt.At(ctx); err != nil {
		return err
	}
	return c.Rec.Write(c.Dir())
}

func (c *container) identifyInit(proc *libcontainer.Process) error {
	pid, err := proc.Pid()
	if err != nil {
		return err
	}
	c.Rec.Init, err = base.Identify(pid)
	return err
}

// undo removes what a failed build left.
func (c *container) undo() error {
	ctx, cancel := context.WithTimeout(context.Background(), undoTimeout)
	defer cancel()
	pid, orphans := c.Rec.Init.Pid, c.orphans()
	err := c.Remove(ctx)
	c.reapOrphans(orphans)
	if pid > 0 {
		// It is our child and the caller never learns of it.
		err = errors.Join(err, stuck.Reap(pid, undoTimeout))
	}
	return err
}

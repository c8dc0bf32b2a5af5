package lc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/cgroups/manager"
	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runc/libcontainer/configs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/internal/cgroupwarm"
	"github.com/coracle-project/coracle/internal/fault"
	"github.com/coracle-project/coracle/runtime"
)

// undoTimeout bounds the cleaning up after a failed Create, which must not
// depend on the caller's context.
const undoTimeout = 10 * time.Second

// Create implements runtime.Engine.
func (e *Engine) Create(ctx context.Context, id string, spec *specs.Spec, opts runtime.CreateOptions) (runtime.Container, error) {
	c, err := e.create(ctx, id, spec, opts)
	if err != nil {
		return nil, fmt.Errorf("create container %s: %w", id, err)
	}
	return c, nil
}

func (e *Engine) create(ctx context.Context, id string, spec *specs.Spec, opts runtime.CreateOptions) (*container, error) {
	if err := runtime.ValidateID(id); err != nil {
		return nil, err
	}
	if !filepath.IsAbs(opts.Bundle) {
		return nil, fmt.Errorf("bundle %q is not an absolute path", opts.Bundle)
	}
	if err := runtime.ValidateSpec(spec, opts.Bundle); err != nil {
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
	if err := mustBeEmpty(cgm.GetPaths()); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}

	cgroupwarm.Keep()
	self, err := identify(os.Getpid())
	if err != nil {
		return nil, err
	}
	c := &container{engine: e, rec: &record{
		Version: recordVersion, ID: id, Bundle: opts.Bundle, Annotations: spec.Annotations,
		Creator: self, Created: time.Now().UTC(),
		Cgroup: nameOf(cfg.Cgroups), CgroupPaths: cgm.GetPaths(),
	}}
	if h := spec.Hooks; h != nil {
		c.rec.Poststart, c.rec.Poststop = h.Poststart, h.Poststop
	}
	if err := e.claim(c.rec); err != nil {
		return nil, err
	}
	children.begin()
	if err := c.build(ctx, cfg, proc); err != nil {
		err = errors.Join(err, c.undo())
		children.done(process{})
		return nil, err
	}
	children.done(c.rec.Init)
	return c, nil
}

// mustBeEmpty refuses a cgroup that somebody's processes are in. Once the record
// names a cgroup, everything in it and below it counts as the container's and dies
// with it.
func mustBeEmpty(paths map[string]string) error {
	for _, path := range paths {
		pids, err := cgroups.GetAllPids(path)
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENODEV) {
			continue
		}
		if err != nil {
			return fmt.Errorf("look into cgroup %s: %w", path, err)
		}
		if len(pids) > 0 {
			return fmt.Errorf("cgroup %s is not empty, it holds %d processes: %w; choose another linux.cgroupsPath",
				path, len(pids), runtime.ErrInvalidSpec)
		}
	}
	return nil
}

// build makes the container and records its init.
func (c *container) build(ctx context.Context, cfg *configs.Config, proc *libcontainer.Process) error {
	if err := fault.At(ctx, "runtime.create.claimed"); err != nil {
		return err
	}
	lib, err := libcontainer.Create(c.dir(), c.rec.ID, cfg)
	if err != nil {
		return err
	}
	// libcontainer knows no contexts. Killing what it has started makes it
	// give up.
	stop := context.AfterFunc(ctx, func() { _ = c.rec.signalPids(unix.SIGKILL) })
	err = lib.Start(proc)
	if err == nil {
		err = c.identifyInit(proc)
	}
	if !stop() && ctx.Err() != nil {
		err = errors.Join(context.Cause(ctx), err)
	}
	if err != nil {
		return err
	}
	if err := fault.At(ctx, "runtime.create.built"); err != nil {
		return err
	}
	return c.rec.write(c.dir())
}

func (c *container) identifyInit(proc *libcontainer.Process) error {
	pid, err := proc.Pid()
	if err != nil {
		return err
	}
	c.rec.Init, err = identify(pid)
	return err
}

// undo removes what a failed build left.
func (c *container) undo() error {
	ctx, cancel := context.WithTimeout(context.Background(), undoTimeout)
	defer cancel()
	pid := c.rec.Init.Pid
	err := c.remove(ctx)
	if pid > 0 {
		// It is our child and the caller never learns of it.
		var status unix.WaitStatus
		_, _ = unix.Wait4(pid, &status, 0, nil)
	}
	return err
}

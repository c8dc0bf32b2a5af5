package lc

import (
	"context"
	"fmt"
	"os"
	"strconv"

	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/coracle-project/coracle/runtime"
	"github.com/coracle-project/coracle/runtime/internal/base"
	"github.com/coracle-project/coracle/runtime/validate"
)

// Exec implements runtime.Container. A paused container counts as not running:
// its new process would be frozen too, half made.
func (c *container) Exec(ctx context.Context, p *specs.Process, opts runtime.ExecOptions) (int, error) {
	pid, err := c.exec(ctx, p, opts)
	if err != nil {
		return 0, c.Fail("exec in", err)
	}
	return pid, nil
}

func (c *container) exec(ctx context.Context, p *specs.Process, opts runtime.ExecOptions) (int, error) {
	if err := validate.Process(p); err != nil {
		return 0, err
	}
	proc, err := libcontainerProcess(p, opts.Stdio)
	if err != nil {
		return 0, err
	}
	proc.SubCgroupPaths = opts.Cgroups
	if err := ctx.Err(); err != nil {
		return 0, context.Cause(ctx)
	}
	if err := c.MayExec(opts); err != nil {
		return 0, err
	}
	c.engine.warmer.Keep()
	lib, err := libcontainer.Load(c.Dir(), c.Rec.ID)
	if err != nil {
		return 0, err
	}
	child, err := c.engine.launch(lib, proc)
	if err != nil {
		if !c.Rec.Init.Alive() {
			return 0, fmt.Errorf("%w: it ended meanwhile: %w", runtime.ErrNotRunning, err)
		}
		return 0, err
	}
	c.setOOMScore(child.Pid, p.OOMScoreAdj)
	return child.Pid, nil
}

// launch starts a process that the caller reaps.
func (e *Engine) launch(lib *libcontainer.Container, proc *libcontainer.Process) (child base.Process, err error) {
	e.children.begin()
	defer func() { e.children.done(child) }()
	if err := lib.Start(proc); err != nil {
		return base.Process{}, err
	}
	pid, err := proc.Pid()
	if err != nil {
		return base.Process{}, err
	}
	return base.Identify(pid)
}

// setOOMScore gives an exec's process its own oom_score_adj; libcontainer gives
// it the container's.
func (c *container) setOOMScore(pid int, want *int) {
	want = c.engine.store.AllowedOOMScore(c.Rec.ID, want)
	if want == nil {
		return
	}
	err := os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid), []byte(strconv.Itoa(*want)), 0)
	if err != nil && !os.IsNotExist(err) {
		c.engine.log.Warn("oom_score_adj not set", "container", c.Rec.ID, "pid", pid, "err", err)
	}
}

package lc

import (
	"context"
	"fmt"
	"os"
	"strconv"

	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/coracle-project/coracle/internal/cgroupwarm"
	"github.com/coracle-project/coracle/runtime"
)

// Exec implements runtime.Container. A paused container counts as not running:
// its new process would be frozen too, half made.
func (c *container) Exec(ctx context.Context, p *specs.Process, opts runtime.ExecOptions) (int, error) {
	pid, err := c.exec(ctx, p, opts)
	if err != nil {
		return 0, c.fail("exec in", err)
	}
	return pid, nil
}

func (c *container) exec(ctx context.Context, p *specs.Process, opts runtime.ExecOptions) (int, error) {
	if err := runtime.ValidateProcess(p); err != nil {
		return 0, err
	}
	proc, err := libcontainerProcess(p, opts.Stdio)
	if err != nil {
		return 0, err
	}
	if err := ctx.Err(); err != nil {
		return 0, context.Cause(ctx)
	}
	status, err := c.status()
	if err != nil {
		return 0, err
	}
	if status != specs.StateRunning {
		return 0, fmt.Errorf("%w: it is %s", runtime.ErrNotRunning, status)
	}
	cgroupwarm.Keep()
	lib, err := libcontainer.Load(c.dir(), c.rec.ID)
	if err != nil {
		return 0, err
	}
	child, err := launch(lib, proc)
	if err != nil {
		if !c.rec.Init.alive() {
			return 0, fmt.Errorf("%w: it ended meanwhile: %w", runtime.ErrNotRunning, err)
		}
		return 0, err
	}
	c.setOOMScore(child.Pid, p.OOMScoreAdj)
	return child.Pid, nil
}

// launch starts a process that the caller reaps.
func launch(lib *libcontainer.Container, proc *libcontainer.Process) (child process, err error) {
	children.begin()
	defer func() { children.done(child) }()
	if err := lib.Start(proc); err != nil {
		return process{}, err
	}
	pid, err := proc.Pid()
	if err != nil {
		return process{}, err
	}
	return identify(pid)
}

// setOOMScore gives an exec's process its own oom_score_adj; libcontainer gives
// it the container's.
func (c *container) setOOMScore(pid int, want *int) {
	want = c.engine.allowedOOMScore(c.rec.ID, want)
	if want == nil {
		return
	}
	err := os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid), []byte(strconv.Itoa(*want)), 0)
	if err != nil && !os.IsNotExist(err) {
		c.engine.log.Warn("oom_score_adj not set", "container", c.rec.ID, "pid", pid, "error", err)
	}
}

package shimv2

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	task "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/coracle-project/coracle/internal/transient"
	"github.com/coracle-project/coracle/runtime"
	"github.com/coracle-project/coracle/runtime/validate"
)

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
	if len(opts.Cgroups) > 0 {
		return 0, fmt.Errorf("cgroups of a process: %w", runtime.ErrUnsupported)
	}
	stdio, err := fifosOf(opts.Stdio)
	if err != nil {
		return 0, err
	}
	spec, err := json.Marshal(p)
	if err != nil {
		return 0, err
	}
	id := rand.Text()
	err = c.call(ctx, "Exec", &task.ExecProcessRequest{
		ID: c.ID(), ExecID: id, Terminal: p.Terminal,
		Stdin: stdio.stdin, Stdout: stdio.stdout, Stderr: stdio.stderr,
		Spec: &anypb.Any{TypeUrl: ociTypes + "Process", Value: spec},
	}, &emptypb.Empty{})
	if err == nil {
		var res task.StartResponse
		if err = c.call(ctx, "Start", &task.StartRequest{ID: c.ID(), ExecID: id}, &res); err == nil {
			var pid int
			if pid, err = c.noteExec(int(res.Pid), id); err == nil {
				return pid, nil
			}
		}
		c.forgetExec(ctx, id)
	}
	if errors.Is(err, runtime.ErrNotFound) || errors.Is(err, errGone) {
		err = fmt.Errorf("%w: %w", runtime.ErrNotRunning, err)
	}
	return 0, err
}

// beyondPids is above all that the kernel gives (PID_MAX_LIMIT).
const beyondPids = 1 << 22

// noteExec writes down the exec id of a process, by the pid that it has for us. That is the shim's,
// unless another has it: shims of virtual machines give all processes the machine's.
func (c *container) noteExec(pid int, id string) (int, error) {
	if pid == c.Rec.Init.Pid {
		pid = beyondPids + 1
	}
	for {
		f, err := os.OpenFile(c.execFile(pid), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if errors.Is(err, os.ErrExist) {
			pid = max(pid, beyondPids) + 1
			continue
		}
		if err != nil {
			return 0, err
		}
		_, err = f.WriteString(id)
		return pid, errors.Join(err, f.Close())
	}
}

// execFile has the exec id of a process that runs, or whose end no one has asked for.
func (c *container) execFile(pid int) string {
	return filepath.Join(c.Dir(), "exec-"+strconv.Itoa(pid))
}

// forgetTimeout bounds what is done for a process after its end.
const forgetTimeout = 10 * time.Second

// forgetExec has the shim forget a process, which is killed if it runs. It returns when the output
// of one that has ended has been copied.
func (c *container) forgetExec(ctx context.Context, id string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), forgetTimeout)
	defer cancel()
	err := c.call(ctx, "Delete", &task.DeleteRequest{ID: c.ID(), ExecID: id}, &task.DeleteResponse{})
	if err != nil && !errors.Is(err, runtime.ErrNotFound) && !errors.Is(err, errGone) {
		_ = c.call(ctx, "Kill", &task.KillRequest{ID: c.ID(), ExecID: id, Signal: uint32(syscall.SIGKILL)}, &emptypb.Empty{})
		c.Store.Log().Warn("shim does not forget a process", "container", c.ID(), "err", err)
	}
}

// Wait implements runtime.Remote.
func (c *container) Wait(ctx context.Context, pid int) (runtime.Exit, error) {
	if pid == c.Rec.Init.Pid {
		return c.finish(ctx)
	}
	id, err := os.ReadFile(c.execFile(pid))
	if errors.Is(err, os.ErrNotExist) {
		err = runtime.ErrNotFound
	}
	if err != nil {
		return runtime.Exit{}, fmt.Errorf("wait for process %d: %w", pid, err)
	}
	var res task.WaitResponse
	err = c.call(ctx, "Wait", &task.WaitRequest{ID: c.ID(), ExecID: string(id)}, &res)
	switch {
	case ctx.Err() != nil, transient.Is(err): // the caller asks again
		return runtime.Exit{}, err
	case err != nil:
		err = fmt.Errorf("wait for process %d: %w: %w", pid, runtime.ErrNotFound, err)
	}
	c.forgetExec(ctx, string(id))
	_ = os.Remove(c.execFile(pid)) // the container may be gone
	return runtime.Exit{Status: int(res.ExitStatus), At: res.ExitedAt.AsTime()}, err
}

// SignalProcess implements runtime.Remote.
func (c *container) SignalProcess(ctx context.Context, pid int, sig syscall.Signal) error {
	return c.with(pid, func(execID string) error {
		return c.do(ctx, "signal process of", "Kill", &task.KillRequest{ID: c.ID(), ExecID: execID, Signal: uint32(sig)})
	})
}

// Resize implements runtime.Remote.
func (c *container) Resize(ctx context.Context, pid int, width, height uint16) error {
	return c.with(pid, func(execID string) error {
		return c.do(ctx, "resize terminal of", "ResizePty",
			&task.ResizePtyRequest{ID: c.ID(), ExecID: execID, Width: uint32(width), Height: uint32(height)})
	})
}

// CloseStdin implements runtime.Remote.
func (c *container) CloseStdin(ctx context.Context, pid int) error {
	return c.with(pid, func(execID string) error {
		return c.do(ctx, "close stdin of", "CloseIO", &task.CloseIORequest{ID: c.ID(), ExecID: execID, Stdin: true})
	})
}

// with calls do with the exec id of a process, which is empty for init. ErrNotRunning if it has
// ended.
func (c *container) with(pid int, do func(execID string) error) error {
	if pid == c.Rec.Init.Pid {
		return do("")
	}
	id, err := os.ReadFile(c.execFile(pid))
	if errors.Is(err, os.ErrNotExist) {
		err = runtime.ErrNotRunning
	}
	if err != nil {
		return c.Fail("find process of", fmt.Errorf("%d: %w", pid, err))
	}
	return do(string(id))
}

package engine

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/runtime"
	"github.com/coracle-project/coracle/runtime/internal/base"
	"github.com/coracle-project/coracle/runtime/internal/stuck"
	"github.com/coracle-project/coracle/runtime/plan"
)

// startHooks runs the hooks that belong into the container, config.md#posix-platform-hooks:
// as processes of it, with the rights of its program and the state on standard input.
func (c *container) startHooks(ctx context.Context) error {
	own, err := c.own()
	if err != nil || len(own.Start) == 0 {
		return err
	}
	var start startHooks
	if err := json.Unmarshal(own.Start, &start); err != nil {
		return fmt.Errorf("read the container's record: %w", err)
	}
	state, err := json.Marshal(c.StateAs(specs.StateCreated).State)
	if err != nil {
		return err
	}
	for i, h := range start.Hooks {
		if err := c.startHook(ctx, h, start.Process, state); err != nil {
			return base.HookError("startContainer", i, h, err)
		}
	}
	return nil
}

func (c *container) startHook(ctx context.Context, h specs.Hook, like *specs.Process, state []byte) error {
	p := *like
	p.Terminal, p.Args, p.Cwd = false, h.Args, "/"
	if len(p.Args) == 0 {
		p.Args = []string{h.Path}
	}
	if h.Env != nil { // else the program's, as with runc
		p.Env = h.Env
	}
	return runInside(ctx, h, state, func(ctx context.Context, stdio runtime.Stdio) (int, error) {
		return c.joinAs(ctx, &p, h.Path, runtime.ExecOptions{Stdio: stdio})
	})
}

// containerHooks runs the hooks that are the host's programs and run in the container's
// namespaces while it is made.
func (b *birth) containerHooks(ctx context.Context, c *container) error {
	if len(b.spec.Hooks.CreateContainer) == 0 {
		return nil
	}
	state, err := json.Marshal(c.StateAs(specs.StateCreating).State)
	if err != nil {
		return err
	}
	pidfd, err := unix.PidfdOpen(c.Rec.Init.Pid, 0)
	if err != nil {
		return fmt.Errorf("pidfd_open: %w", err)
	}
	defer unix.Close(pidfd)
	for i, h := range b.spec.Hooks.CreateContainer {
		err := runInside(ctx, h, state, func(ctx context.Context, stdio runtime.Stdio) (int, error) {
			return b.containerHook(ctx, c, h, pidfd, stdio)
		})
		if err != nil {
			return base.HookError("createContainer", i, h, err)
		}
	}
	return nil
}

// rootfs is the container's root on the host.
func (b *birth) rootfs() string {
	if filepath.IsAbs(b.spec.Root.Path) {
		return b.spec.Root.Path
	}
	return filepath.Join(b.opts.Bundle, b.spec.Root.Path)
}

func (b *birth) containerHook(ctx context.Context, c *container, h specs.Hook, pidfd int, stdio runtime.Stdio) (int, error) {
	e := &entry{
		container: c, opts: runtime.ExecOptions{Stdio: stdio}, plan: plan.Hook(h, b.plan.Joinable(), b.rootfs()),
		watch: b.engine.stopwatch("hook"),
	}
	defer e.open.close()
	var err error
	if e.code, err = e.plan.Encode(b.engine.features); err != nil {
		return 0, err
	}
	return e.run(ctx, pidfd)
}

// runInside starts a hook with the state on its standard input and waits for it.
func runInside(ctx context.Context, h specs.Hook, state []byte, start func(context.Context, runtime.Stdio) (int, error)) error {
	if h.Timeout != nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, time.Duration(*h.Timeout)*time.Second,
			fmt.Errorf("it ran longer than its %d seconds", *h.Timeout))
		defer cancel()
	}
	in, err := memfd(state)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := memfd(nil)
	if err != nil {
		return err
	}
	defer out.Close()
	pid, err := start(ctx, runtime.Stdio{Stdin: in, Stdout: out, Stderr: out})
	if err != nil {
		return err
	}
	pidfd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return fmt.Errorf("pidfd_open: %w", err)
	}
	defer unix.Close(pidfd)
	if err := base.AwaitExit(ctx, pidfd); err != nil {
		_ = unix.PidfdSendSignal(pidfd, unix.SIGKILL, nil, 0)
		if left := stuck.Reap(pid, stuck.Patience); left != nil {
			return errors.Join(context.Cause(ctx), left)
		}
		return cmp.Or(context.Cause(ctx), err)
	}
	var ws unix.WaitStatus
	for {
		if _, err = unix.Wait4(pid, &ws, 0, nil); !errors.Is(err, unix.EINTR) { // the process has ended
			break
		}
	}
	const most = 1024 // bytes of output, enough for an error message
	switch {
	case err != nil:
		return err
	case ws.Signaled():
		return fmt.Errorf("it was killed by signal %d (%s)", ws.Signal(), ws.Signal())
	case ws.ExitStatus() != 0:
		said := make([]byte, most)
		n, _ := out.ReadAt(said, 0)
		return fmt.Errorf("exit status %d, output %q", ws.ExitStatus(), said[:n])
	}
	return nil
}

// memfd is a file in memory with this content, to be read from its beginning.
func memfd(data []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate("state", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("memfd_create: %w", err)
	}
	f := os.NewFile(uintptr(fd), "state")
	if _, err := bytes.NewReader(data).WriteTo(f); err != nil {
		_ = f.Close()
		return nil, err
	}
	if _, err := f.Seek(0, 0); err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

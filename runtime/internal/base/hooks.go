package base

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/runtime"
)

// RunHooks runs hooks in order, each with the container's state on its standard
// input (runtime spec, config.md#posix-platform-hooks). It stops at the first
// that fails. kind is their key in the configuration.
func (c *Container) RunHooks(ctx context.Context, kind string, hooks []specs.Hook, status specs.ContainerState) error {
	if len(hooks) == 0 {
		return nil
	}
	state, err := json.Marshal(c.StateAs(status).State)
	if err != nil {
		return err
	}
	for i, h := range hooks {
		if err := runHook(ctx, h, state); err != nil {
			return HookError(kind, i, h, err)
		}
	}
	return nil
}

// HookError says which hook failed, counted from 0, as runc's callers know it.
func HookError(kind string, i int, h specs.Hook, err error) error {
	return fmt.Errorf("error running %s hook #%d: hook %s: %w", kind, i, h.Path, err)
}

// RunPoststart runs the hooks that come after the user's program has started. One that fails
// ends the container (runtime spec, runtime.md#lifecycle, step 9).
func (c *Container) RunPoststart(ctx context.Context) error {
	err := c.RunHooks(ctx, "poststart", c.Rec.Poststart, specs.StateRunning)
	if err == nil {
		return nil
	}
	if kill := c.Rec.SignalPids(ctx, unix.SIGKILL); kill != nil && !errors.Is(kill, runtime.ErrNotRunning) {
		err = errors.Join(err, kill)
	}
	return err
}

// runPoststop runs the hooks that come last. If one fails, a warning is logged and the others
// still run (step 13).
func (c *Container) runPoststop(ctx context.Context) {
	for i := range c.Rec.Poststop {
		if err := c.RunHooks(ctx, "poststop", c.Rec.Poststop[i:i+1], specs.StateStopped); err != nil {
			c.Store.log.Warn("poststop hook failed", "container", c.Rec.ID, "err", err)
		}
	}
}

func runHook(ctx context.Context, h specs.Hook, state []byte) error {
	if h.Timeout != nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, time.Duration(*h.Timeout)*time.Second,
			fmt.Errorf("it ran longer than its %d seconds", *h.Timeout))
		defer cancel()
	}
	cmd := exec.CommandContext(ctx, h.Path)
	cmd.Args = h.Args
	if len(cmd.Args) == 0 {
		cmd.Args = []string{h.Path}
	}
	cmd.Env = append([]string{}, h.Env...) // never nil, which would mean ours
	cmd.Stdin = bytes.NewReader(state)
	// Children that keep the output open must not keep us waiting.
	cmd.WaitDelay = time.Second
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return fmt.Errorf("%w, output %q", err, tail(out.Bytes()))
	}
	return nil
}

// tail is the last part of a hook's output, enough for an error message.
func tail(b []byte) []byte {
	const most = 1024
	return b[max(0, len(b)-most):]
}

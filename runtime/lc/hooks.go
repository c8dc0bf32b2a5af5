package lc

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// runHooks runs hooks in order, each with the container's state on its standard
// input (runtime spec, config.md#posix-platform-hooks). It stops at the first
// that fails.
func (c *container) runHooks(ctx context.Context, hooks []specs.Hook, status specs.ContainerState) error {
	if len(hooks) == 0 {
		return nil
	}
	state, err := json.Marshal(c.state(status).State)
	if err != nil {
		return err
	}
	for _, h := range hooks {
		if err := runHook(ctx, h, state); err != nil {
			return err
		}
	}
	return nil
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
		return fmt.Errorf("hook %s: %w, output %q", h.Path, err, tail(out.Bytes()))
	}
	return nil
}

// tail is the last part of a hook's output, enough for an error message.
func tail(b []byte) []byte {
	const most = 1024
	return b[max(0, len(b)-most):]
}

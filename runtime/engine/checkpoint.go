package engine

import (
	"context"
	"fmt"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/coracle-project/coracle/runtime"
)

var _ runtime.Checkpointer = (*container)(nil)

// Checkpoint implements runtime.Checkpointer. libcontainer drives CRIU, by the configuration
// in the bundle, which must still be what the container was made from.
func (c *container) Checkpoint(ctx context.Context, opts runtime.CheckpointOptions) error {
	if err := c.checkpoint(ctx, opts); err != nil {
		return c.Fail("checkpoint", err)
	}
	return nil
}

func (c *container) checkpoint(ctx context.Context, opts runtime.CheckpointOptions) error {
	status, err := c.Status()
	if err != nil {
		return err
	}
	if status != specs.StateRunning && status != runtime.StatusPaused {
		return fmt.Errorf("%w: it is %s", runtime.ErrNotRunning, status)
	}
	spec, err := runtime.LoadSpec(c.Rec.Bundle)
	if err != nil {
		return err
	}
	lib, err := c.engine.lc.Foreign(c.Rec, spec)
	if err != nil {
		return err
	}
	return lib.Checkpoint(ctx, opts)
}

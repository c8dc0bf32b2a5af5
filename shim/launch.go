package shim

import (
	"context"
	"fmt"
	"time"

	"github.com/coracle-project/coracle/runtime"
	"github.com/coracle-project/coracle/shim/api"
)

// Launch implements api.ShimService.
func (s *Service) Launch(ctx context.Context, r *api.LaunchRequest) (*api.LaunchResponse, error) {
	rec := record{ID: r.Id, Bundle: r.Bundle, Terminal: r.Terminal}
	opts, err := optionsOf(r.Options, &rec)
	if err != nil {
		return nil, fmt.Errorf("create container %s: %w", r.Id, err)
	}
	var steps []*api.Step
	opts.Made = func(made []runtime.Step) {
		for _, m := range made {
			steps = append(steps, &api.Step{What: m.What, BeganNs: m.Began.UnixNano(), TookNs: int64(m.Took)})
		}
	}
	c, err := s.create(ctx, rec, opts, r.Checkpoint)
	if err != nil {
		return nil, err
	}
	created := time.Now()
	err = faultLaunchCreated.At(ctx)
	if err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		// The next daemon finds it created, and takes the start back. One that was restored
		// from a checkpoint runs already.
		return nil, fmt.Errorf("start container %s: %w", c.id, err)
	}
	if err := c.start(ctx); err != nil {
		return nil, err
	}
	return &api.LaunchResponse{Pid: uint32(c.init.pid), CreatedNs: created.UnixNano(), EngineSteps: steps}, nil
}

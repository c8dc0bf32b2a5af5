package shim

import (
	"context"
	"fmt"
	"time"

	"github.com/coracle-project/coracle/shim/api"
)

// Run implements api.ShimService.
func (s *Service) Run(ctx context.Context, r *api.RunRequest) (*api.RunResponse, error) {
	c, err := s.get(r.Id)
	if err != nil {
		return nil, fmt.Errorf("exec in %w", err)
	}
	rec := execRecord{Terminal: r.Terminal, Stdin: r.Stdin, Stdout: r.Stdout, Stderr: r.Stderr, Owner: ownerOf(r)}
	if r.TimeoutNs > 0 {
		rec.Deadline = now() + time.Duration(r.TimeoutNs)
	}
	e, err := c.addExec(r.ExecId, rec, r.Process, true)
	if err != nil {
		return nil, err
	}
	exit, err := e.run(ctx)
	if err != nil || exit == nil {
		return &api.RunResponse{}, err
	}
	return &api.RunResponse{Exited: true, ExitStatus: uint32(exit.Code)}, nil
}

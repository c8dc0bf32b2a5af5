package client

import (
	"context"

	task "github.com/containerd/containerd/api/runtime/task/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/coracle-project/coracle/shim/api"
)

// run starts a process. A shim that an upgrade has left running may be older than its Run, and
// needs two calls.
func (k *conn) run(ctx context.Context, r *api.RunRequest) (*api.RunResponse, error) {
	res, err := k.shim.Run(ctx, r)
	if status.Code(err) != codes.Unimplemented {
		return res, err
	}
	if _, err := k.task.Exec(ctx, &task.ExecProcessRequest{
		ID: r.Id, ExecID: r.ExecId, Terminal: r.Terminal, Stdin: r.Stdin, Stdout: r.Stdout, Stderr: r.Stderr,
		Spec: &anypb.Any{TypeUrl: ociTypes + "Process", Value: r.Process},
	}); err != nil {
		return nil, err
	}
	_, err = k.task.Start(ctx, &task.StartRequest{ID: r.Id, ExecID: r.ExecId})
	return &api.RunResponse{}, err
}

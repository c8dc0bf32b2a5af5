package client

import (
	"context"
	"fmt"
	"time"

	task "github.com/containerd/containerd/api/runtime/task/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/coracle-project/coracle/runtime"
	"github.com/coracle-project/coracle/shim/api"
)

// Launch makes the container and executes the user's program in it, or restores a
// checkpoint. After an error the container may be there, created or running: the caller kills and
// deletes it. ErrExists if the id is taken; that container goes on.
func (c *Client) Launch(ctx context.Context, r LaunchRequest) (Launched, error) {
	l, err := c.shimFor(ctx, r.PodID)
	if err != nil {
		return Launched{}, fmt.Errorf("create container %s: %w", r.ID, err)
	}
	c.forget(l, r.ID) // an exit of an earlier container with this id
	var res *api.LaunchResponse
	err = l.call(ctx, func(ctx context.Context, k *conn) (err error) {
		res, err = k.launch(ctx, c.request(r))
		return err
	})
	if err != nil {
		return Launched{}, err
	}
	steps := make([]runtime.Step, len(res.EngineSteps))
	for i, s := range res.EngineSteps {
		steps[i] = runtime.Step{What: s.What, Began: time.Unix(0, s.BeganNs), Took: time.Duration(s.TookNs)}
	}
	return Launched{Pid: int(res.Pid), Created: time.Unix(0, res.CreatedNs), EngineSteps: steps}, nil
}

// shimFor is the shim that makes the pod's containers; it is started if there is none.
func (c *Client) shimFor(ctx context.Context, podID string) (*link, error) {
	if c.cfg.Scope == ScopePod {
		return c.open(ctx, podID)
	}
	return c.open(ctx, nodeShim)
}

// request is a LaunchRequest on the wire.
func (c *Client) request(r LaunchRequest) *api.LaunchRequest {
	return &api.LaunchRequest{
		Id: r.ID, Bundle: r.Bundle, Terminal: r.Terminal, Checkpoint: r.Checkpoint,
		Options: &api.CreateOptions{
			PodId: r.PodID, SystemdCgroup: c.cfg.SystemdCgroup, Stdin: r.Stdin, StdinOnce: r.StdinOnce,
			Log: true, LogPath: r.LogPath, LogDirectory: r.LogDirectory, Handler: r.Handler,
			LogFileBytes: r.LogLimit.FileBytes, LogFiles: int32(r.LogLimit.Files),
		},
	}
}

// launch starts a container. A shim that an upgrade has left running may be older than its Launch,
// and needs two calls.
func (k *conn) launch(ctx context.Context, r *api.LaunchRequest) (*api.LaunchResponse, error) {
	res, err := k.shim.Launch(ctx, r)
	if status.Code(err) != codes.Unimplemented {
		return res, err
	}
	made, err := k.create(ctx, r)
	if err != nil {
		return nil, err
	}
	created := time.Now()
	if _, err := k.task.Start(ctx, &task.StartRequest{ID: r.Id}); err != nil {
		return nil, err
	}
	return &api.LaunchResponse{Pid: made.Pid, CreatedNs: created.UnixNano()}, nil
}

// create makes a container by the Task API and leaves init blocked.
func (k *conn) create(ctx context.Context, r *api.LaunchRequest) (*task.CreateTaskResponse, error) {
	options, err := anypb.New(r.Options)
	if err != nil {
		return nil, err
	}
	return k.task.Create(ctx, &task.CreateTaskRequest{
		ID: r.Id, Bundle: r.Bundle, Terminal: r.Terminal, Options: options, Checkpoint: r.Checkpoint,
	})
}

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

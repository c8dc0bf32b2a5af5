package client

import (
	"context"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/coracle-project/coracle/runtime"
)

// contract lists the methods of Client that pod/ builds on.
type contract interface {
	Start(ctx context.Context) error
	Events() <-chan Event
	Create(ctx context.Context, r CreateRequest) (pid int, err error)
	StartContainer(ctx context.Context, podID, id string) error
	Exec(ctx context.Context, r ExecRequest) (exitCode int32, err error)
	Attach(ctx context.Context, podID, id string, s Streams) error
	Kill(ctx context.Context, r KillRequest) error
	Delete(ctx context.Context, podID, id string) error
	DeletePod(ctx context.Context, podID string) error
	Status(ctx context.Context, podID, id string) (Status, error)
	List(ctx context.Context) (map[string][]string, error)
	Stats(ctx context.Context, podID, id string) (runtime.Stats, error)
	Update(ctx context.Context, podID, id string, r *specs.LinuxResources) error
	Checkpoint(ctx context.Context, podID, id, dir string) error
	Pause(ctx context.Context, podID, id string) error
	Resume(ctx context.Context, podID, id string) error
	ReopenLog(ctx context.Context, podID, id string) error
	Shutdown(ctx context.Context) error
	Close() error
}

var _ contract = (*Client)(nil)

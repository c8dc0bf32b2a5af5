package client

import (
	"context"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/coracle-project/coracle/runtime"
)

// contract lists the methods of Client that pod/ builds on.
type contract interface {
	// Start connects to (or starts) the keeper and the shims of all pods that
	// have records in StateDir, and returns when each has answered.
	Start(ctx context.Context) error
	// Events delivers the exit of each container's init exactly once per
	// Client (and again after a daemon restart until Delete). Closed by Close.
	Events() <-chan Event
	// Create makes the container and leaves init blocked; returns init's pid.
	// On error nothing is left behind. ErrExists if the id is taken.
	Create(ctx context.Context, r CreateRequest) (pid int, err error)
	StartContainer(ctx context.Context, podID, id string) error
	// Exec runs a process to its end and returns its exit code. When ctx ends
	// first the process is killed and ctx's error returned.
	Exec(ctx context.Context, r ExecRequest) (exitCode int32, err error)
	// Attach copies until the container exits or the client's stdin and outputs are gone or ctx ends.
	Attach(ctx context.Context, podID, id string, s Streams) error
	Kill(ctx context.Context, r KillRequest) error
	// Delete frees a container that is not running (killing what is left of it); idempotent.
	Delete(ctx context.Context, podID, id string) error
	// DeletePod says that no container of the pod is left: with ScopePod its shim ends. Idempotent.
	DeletePod(ctx context.Context, podID string) error
	Status(ctx context.Context, podID, id string) (Status, error)
	// List returns container ids by pod id, as the shims know them.
	List(ctx context.Context) (map[string][]string, error)
	Stats(ctx context.Context, podID, id string) (runtime.Stats, error)
	Update(ctx context.Context, podID, id string, r *specs.LinuxResources) error
	ReopenLog(ctx context.Context, podID, id string) error
	// Close stops supervising and disconnects. Containers, shims and keeper stay, and
	// the keeper no longer starts the daemon again.
	Close() error
}

package engine

import (
	"context"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/coracle-project/coracle/runtime"
	"github.com/coracle-project/coracle/runtime/internal/base"
)

// noFallback is the Fallback of a program without libcontainer.
type noFallback struct{}

func (noFallback) Create(_ context.Context, id string, _ *specs.Spec, _ runtime.CreateOptions) (runtime.Container, error) {
	return nil, wrap("create", id, ErrLibcontainer)
}

func (noFallback) Load(_ context.Context, id string) (runtime.Container, error) {
	return nil, wrap("load", id, ErrLibcontainer)
}

func (noFallback) List(context.Context) ([]string, error) { return nil, ErrLibcontainer }

func (noFallback) Restore(_ context.Context, id string, _ *specs.Spec, _ runtime.CreateOptions,
	_ runtime.RestoreOptions,
) (runtime.Container, error) {
	return nil, wrap("restore", id, ErrLibcontainer)
}

func (noFallback) Foreign(*base.Record, *specs.Spec) (runtime.Checkpointer, error) {
	return nil, ErrLibcontainer
}

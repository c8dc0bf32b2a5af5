package engine

import (
	"context"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/coracle-project/coracle/runtime"
)

var _ runtime.Restorer = (*Engine)(nil)

// Restore implements runtime.Restorer: CRIU is libcontainer's to drive.
func (e *Engine) Restore(ctx context.Context, id string, spec *specs.Spec, create runtime.CreateOptions,
	opts runtime.RestoreOptions,
) (runtime.Container, error) {
	return e.lc.Restore(ctx, id, spec, create, opts)
}

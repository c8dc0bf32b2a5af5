// Package handler is the engine of a program that has more than one: CreateOptions.Handler says
// which one makes a container, and the same one drives it from then on.
//
// All share one state directory, so that an id is taken once; a container's record names its
// engine.
package handler

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/coracle-project/coracle/runtime"
	"github.com/coracle-project/coracle/runtime/internal/base"
)

// Other is an engine for what CreateOptions.Handler starts with.
type Other struct {
	// Prefix is runtime.OCIHandler or runtime.ShimHandler.
	Prefix string
	// Name is what records call the engine.
	Name   string
	Engine runtime.Engine
}

// Engine implements runtime.Engine and runtime.Restorer.
type Engine struct {
	store   *base.Store
	name    string // the name of the builtin engine in records
	builtin runtime.Engine
	others  []Other
}

var (
	_ runtime.Engine        = (*Engine)(nil)
	_ runtime.Restorer      = (*Engine)(nil)
	_ runtime.Rebuilder     = (*Engine)(nil)
	_ runtime.RecordChecker = (*Engine)(nil)
)

// New makes an Engine from engines that share stateDir. name is the name of the builtin engine in
// records. New changes nothing.
func New(stateDir, name string, builtin runtime.Engine, others ...Other) (*Engine, error) {
	store, err := base.NewStore(stateDir, nil)
	if err != nil {
		return nil, err
	}
	return &Engine{store: store, name: name, builtin: builtin, others: others}, nil
}

// Create implements runtime.Engine. ErrUnsupported if no one knows the handler.
func (e *Engine) Create(ctx context.Context, id string, spec *specs.Spec, opts runtime.CreateOptions) (runtime.Container, error) {
	if opts.Handler == "" {
		return e.builtin.Create(ctx, id, spec, opts)
	}
	for _, o := range e.others {
		if strings.HasPrefix(opts.Handler, o.Prefix) {
			return o.Engine.Create(ctx, id, spec, opts)
		}
	}
	return nil, fmt.Errorf("create container %s: handler %q: %w", id, opts.Handler, runtime.ErrUnsupported)
}

// Load implements runtime.Engine.
func (e *Engine) Load(ctx context.Context, id string) (runtime.Container, error) {
	rec, err := e.store.Load(id)
	if err != nil {
		return nil, err
	}
	for _, o := range e.others {
		if rec.Engine == o.Name {
			return o.Engine.Load(ctx, id)
		}
	}
	return e.builtin.Load(ctx, id)
}

// List implements runtime.Engine.
func (e *Engine) List(ctx context.Context) ([]string, error) { return e.builtin.List(ctx) }

// CheckRecords implements runtime.RecordChecker.
func (e *Engine) CheckRecords(context.Context) error { return e.store.CheckRecords() }

// Rebuild implements runtime.Rebuilder.
func (e *Engine) Rebuild(ctx context.Context, id string, known runtime.Known) (runtime.Container, error) {
	rec, err := e.store.Rebuild(id, e.name, known)
	if err != nil {
		return nil, err
	}
	if c, err := e.Load(ctx, id); err == nil {
		return c, nil
	}
	// The record could not be written, or an engine cannot continue with it. The container can only
	// be signalled and deleted.
	return &remains{base.Container{Store: e.store, Rec: rec}}, nil
}

// remains is a container that can only be signalled and deleted.
type remains struct{ base.Container }

func (r *remains) Start(context.Context) error {
	return r.Fail("start", fmt.Errorf("its record is lost: %w", runtime.ErrUnsupported))
}

func (r *remains) Exec(context.Context, *specs.Process, runtime.ExecOptions) (int, error) {
	return 0, r.Fail("exec in", fmt.Errorf("its record is lost: %w", runtime.ErrUnsupported))
}

// Restore implements runtime.Restorer, for containers without a handler.
func (e *Engine) Restore(ctx context.Context, id string, spec *specs.Spec, create runtime.CreateOptions,
	opts runtime.RestoreOptions,
) (runtime.Container, error) {
	r, ok := e.builtin.(runtime.Restorer)
	if !ok || create.Handler != "" {
		return nil, fmt.Errorf("restore container %s: handler %q: %w", id, create.Handler, runtime.ErrUnsupported)
	}
	return r.Restore(ctx, id, spec, create, opts)
}

// Close closes all engines that can be closed. Containers live on.
func (e *Engine) Close() error {
	var errs []error
	closeOne := func(engine runtime.Engine) {
		if c, ok := engine.(io.Closer); ok {
			errs = append(errs, c.Close())
		}
	}
	for _, o := range e.others {
		closeOne(o.Engine)
	}
	closeOne(e.builtin)
	e.store.Close()
	return errors.Join(errs...)
}

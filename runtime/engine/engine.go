// Package engine is Coracle's own engine: plans (package plan) carried out by a starter
// process (package zygote). No program of ours is executed for a container, and nothing is
// compiled or looked up twice.
//
// # State directory
//
//	<StateDir>/<id>/record.json  see base.Record
//	<StateDir>/<id>/exec.fifo    the gate: exists from Create until Start
//
// # What it leaves to libcontainer
//
// A configuration that plans cannot express (plan.ErrUnsupported) is handed to engine lc, on the
// same state directory. The record says which engine made a container.
package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"sync"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/coracle-project/coracle/runtime"
	"github.com/coracle-project/coracle/runtime/internal/base"
	"github.com/coracle-project/coracle/runtime/plan"
	"github.com/coracle-project/coracle/runtime/seccomp"
	"github.com/coracle-project/coracle/runtime/zygote"
	"github.com/coracle-project/coracle/runtime/zygote/program"
)

// Name is what records of containers call this engine, Libcontainer the one of package lc.
const (
	Name         = "coracle"
	Libcontainer = "libcontainer"
)

// ErrLibcontainer says that only libcontainer can do this, and that the engine was given none
// (Config.Fallback). Nothing was made or changed.
var ErrLibcontainer = errors.New("needs libcontainer, which this program does not have")

// Fallback is libcontainer behind the same interface: package lc, or nothing in a program
// that is to be small.
type Fallback interface {
	runtime.Engine
	runtime.Restorer
	// Foreign is a handle for the checkpoint of a container of this engine.
	Foreign(rec *base.Record, spec *specs.Spec) (runtime.Checkpointer, error)
}

// Config is what an Engine needs.
type Config struct {
	// StateDir holds one directory per container. It belongs on a tmpfs: no container outlives
	// a reboot. It is made when needed, mode 0700.
	StateDir string
	// Log gets warnings, such as a setting the kernel refused. nil is slog.Default().
	Log *slog.Logger
	// Fallback takes what this engine cannot do, on the same state directory. Without it that
	// fails with ErrLibcontainer.
	Fallback Fallback
	// Trace, if not nil, is told where the time of each Create and Exec went.
	Trace Trace
	// Alone says that this process makes one container at a time, as a command does: the starter
	// then makes namespaces while the engine prepares the rest, and makes no second container.
	Alone bool
	// Early is a starter that was started before there was an engine, for the first container; it may
	// be nil.
	Early *program.Starting
	// Resctrl is where the resctrl file system is mounted, "" to find it (linux.intelRdt).
	Resctrl string
	// Patience is how long to wait for the starter; zero is zygote.DefaultPatience.
	Patience zygote.Patience
	// Features, if not nil, are the kernel's as the engine is to believe them.
	Features *plan.Features
}

// Engine implements runtime.Engine. Close ends its starter process.
type Engine struct {
	store    *base.Store
	log      *slog.Logger
	lc       Fallback // never nil
	features plan.Features
	filters  seccomp.Cache
	// hierarchies are of cgroups of version 1.
	hierarchies hierarchies
	// onlyLoad leaves all new containers to libcontainer.
	onlyLoad bool
	resctrl  string // Config.Resctrl
	trace    Trace
	alone    bool
	patience zygote.Patience
	early    *program.Starting // Config.Early

	mu      sync.Mutex
	starter *zygote.Zygote   // nil until it is needed
	retired []*zygote.Zygote // ended, but not yet reaped
	// noPivot lets further starters do without pivot_root(2), see plan.Zygote.
	noPivot bool
}

var _ runtime.Engine = (*Engine)(nil)

// New checks the configuration. It touches nothing.
func New(cfg Config) (*Engine, error) {
	store, err := base.NewStore(cfg.StateDir, cfg.Log)
	if err != nil {
		return nil, err
	}
	e := &Engine{store: store, log: store.Log(), lc: cfg.Fallback, trace: cfg.Trace, resctrl: cfg.Resctrl, alone: cfg.Alone}
	e.early = cfg.Early
	if e.patience = cfg.Patience; e.patience == (zygote.Patience{}) {
		e.patience = zygote.DefaultPatience
	}
	if e.lc == nil {
		e.lc = noFallback{}
	}
	if cfg.Features != nil {
		e.features = *cfg.Features
	} else {
		e.features = plan.Probe()
	}
	return e, nil
}

// Load implements runtime.Engine.
func (e *Engine) Load(ctx context.Context, id string) (runtime.Container, error) {
	rec, err := e.store.Load(id)
	if err != nil {
		return nil, err
	}
	if rec.Engine != Name {
		return e.lc.Load(ctx, id)
	}
	return e.container(rec), nil
}

// List implements runtime.Engine.
func (e *Engine) List(context.Context) ([]string, error) { return e.store.List() }

// Warm starts the starter process, so that the first container need not wait for it.
func (e *Engine) Warm() error {
	if e.onlyLoad {
		return nil
	}
	_, err := e.zygote()
	return err
}

// Dismiss is the beginning of Close: it waits for nothing.
func (e *Engine) Dismiss() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.starter != nil {
		e.starter.Dismiss()
	}
}

// Close ends the starter process and background work, including that of Config.Fallback. Containers
// keep running, and a later Create starts the starter again.
func (e *Engine) Close() error {
	e.store.Close()
	var errs []error
	if c, ok := e.lc.(io.Closer); ok {
		errs = append(errs, c.Close())
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.starter != nil {
		e.retired, e.starter = append(e.retired, e.starter), nil
	}
	for _, z := range e.retired {
		errs = append(errs, z.Close())
	}
	e.retired = nil
	return errors.Join(errs...)
}

// clone starts a child that runs a plan, and starts the starter where none lives.
func (e *Engine) clone(code *plan.Code, ns plan.Namespaces, cgroup int, fds []int) (int, error) {
	for try := 0; ; try++ {
		z, err := e.zygote()
		if err != nil {
			return 0, err
		}
		pid, err := z.Clone(code, ns, cgroup, fds)
		if hung := (*zygote.Hung)(nil); errors.As(err, &hung) {
			e.log.Warn("replacing container starter that hangs", "starter", hung.Where, "stack", hung.Stack)
		}
		if errors.Is(err, zygote.ErrGone) || errors.Is(err, zygote.ErrLost) {
			e.forget(z)
		}
		// A request that may have been carried out is not made again: two children would run one
		// plan.
		if !errors.Is(err, zygote.ErrGone) || try > 0 {
			return pid, err
		}
	}
}

func (e *Engine) zygote() (*zygote.Zygote, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.starter == nil {
		start := func() (*zygote.Zygote, error) { return zygote.Start(e.features, e.noPivot, e.patience, e.early) }
		if rootless() {
			start = func() (*zygote.Zygote, error) { return zygote.StartPlain(e.features, e.patience, e.early) }
		}
		z, err := start()
		if err != nil {
			return nil, err
		}
		e.starter = z
		if !e.alone { // it would soon end with this process
			if err := z.Watch(func() { e.forget(z) }); err != nil {
				e.log.Warn("cannot watch container starter; a dead one stays a zombie until the next is started", "err", err)
			}
		}
	}
	return e.starter, nil
}

// allowNoPivot is for a container made with CreateOptions.NoPivot.
func (e *Engine) allowNoPivot() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.noPivot = true
}

// retire ends a starter that has made namespaces for one container.
func (e *Engine) retire() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.starter != nil && e.starter.Made() != 0 {
		e.starter.Dismiss()
		e.retired, e.starter = append(e.retired, e.starter), nil
	}
}

func (e *Engine) forget(z *zygote.Zygote) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.starter == z {
		e.starter = nil
	}
}

// container is a handle, as base.Container is.
type container struct {
	base.Container
	engine *Engine
}

var _ runtime.Container = (*container)(nil)

func (e *Engine) container(rec *base.Record) *container {
	c := &container{Container: base.Container{Store: e.store, Rec: rec}, engine: e}
	c.Gate = filepath.Join(c.Dir(), "exec.fifo")
	return c
}

func wrap(verb, id string, err error) error { return fmt.Errorf("%s container %s: %w", verb, id, err) }

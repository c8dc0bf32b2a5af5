// Package lc is the engine on runc's libcontainer, called in process.
//
// # State directory
//
//	<StateDir>/<id>/record.json      see base.Record
//	<StateDir>/<id>/<id>/state.json  libcontainer's own state, needed to exec
//	<StateDir>/<id>/<id>/exec.fifo   exists from Create until Start
//
// # Processes
//
// libcontainer starts the running executable again as "init" (see Init), which
// forks twice and reports the last child. That child belongs to the caller, who
// reaps it; the two stages before it are reaped here.
package lc

import (
	"context"
	"log/slog"
	"path/filepath"

	"github.com/coracle-project/coracle/internal/cgroupwarm"
	"github.com/coracle-project/coracle/runtime"
	"github.com/coracle-project/coracle/runtime/internal/base"
)

// Name is what records of containers call this engine.
const Name = "libcontainer"

// Config is what an Engine needs.
type Config struct {
	// StateDir holds one directory per container. It belongs on a tmpfs: no
	// container outlives a reboot. It is made when needed, mode 0700. Neither
	// it nor the executable's directory may lie in the other: the overlay that
	// protects the executable from containers could not be made, and each start
	// would copy the executable instead (some 6 ms).
	StateDir string
	// Log gets warnings, such as a setting the kernel refused. nil is
	// slog.Default().
	Log *slog.Logger
	// Children are those of this process. Engines of one process must share them, or the failed start
	// of one engine would kill what another one is starting. nil is for a process with one engine.
	Children *Children
}

// Engine implements runtime.Engine. It holds no state besides the directory, so
// any number of them, in any number of processes, may share one.
type Engine struct {
	store    *base.Store
	log      *slog.Logger
	warmer   cgroupwarm.Warmer
	children *Children
}

var _ runtime.Engine = (*Engine)(nil)

// New checks the configuration. It touches nothing.
func New(cfg Config) (*Engine, error) {
	store, err := base.NewStore(cfg.StateDir, cfg.Log)
	if err != nil {
		return nil, err
	}
	bridgeLogs(store.Log())
	if cfg.Children == nil {
		cfg.Children = new(Children)
	}
	return &Engine{store: store, log: store.Log(), children: cfg.Children}, nil
}

// Load implements runtime.Engine.
func (e *Engine) Load(_ context.Context, id string) (runtime.Container, error) {
	rec, err := e.store.Load(id)
	if err != nil {
		return nil, err
	}
	return e.container(rec), nil
}

// List implements runtime.Engine.
func (e *Engine) List(context.Context) ([]string, error) { return e.store.List() }

// Close ends background work. Containers keep running.
func (e *Engine) Close() error {
	e.store.Close()
	return nil
}

// container is a handle, as base.Container is.
type container struct {
	base.Container
	engine *Engine
}

var _ runtime.Container = (*container)(nil)

func (e *Engine) container(rec *base.Record) *container {
	c := &container{Container: base.Container{Store: e.store, Rec: rec}, engine: e}
	// There libcontainer's init waits: it opens the FIFO for writing, writes one byte and
	// executes the user's program.
	c.Gate = filepath.Join(c.libDir(), "exec.fifo")
	return c
}

// libDir is libcontainer's directory of this container.
func (c *container) libDir() string { return filepath.Join(c.Dir(), c.ID()) }

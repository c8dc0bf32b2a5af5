// Package shimv2 is an engine that has a containerd shim make the containers: any program that
// speaks containerd's Runtime v2 protocol (core/runtime/v2/README.md there), such as
// containerd-shim-runc-v2, Kata's or gVisor's.
//
//	SHIM … start      in the bundle's directory; prints where it listens
//	Task API          containerd.task.v2.Task or v3 over ttrpc: Create, Start, Exec, Kill, Wait, …
//	SHIM … delete     when it does not answer any more
//
// Which containers share a shim's process is the shim's decision, by the annotation
// io.kubernetes.cri.sandbox-id: those of a pod, usually.
//
// # Whose children they are
//
// The containers' processes are the shim's: how they end is asked of it (Remote). Its FIFOs are
// ours, so logs and attachments are as for other containers, whichever of our processes is killed.
// What is lost is what only the shim knows: when that dies its containers count as ended with an
// unknown status.
//
// # State directory
//
//	<StateDir>/<id>/record.json  see base.Record
//	<StateDir>/<id>/exit.json    how init ended, from before the shim forgets it
//	<StateDir>/<id>/exec-<pid>   the exec id of a process, see noteExec
//	<RootDir>/b/<id>/            the bundle, the shim's working directory
//	<RootDir>/gone/<id>/         a bundle that is being removed
//	<RootDir>/s/                 the shims' sockets
//	<RootDir>/events             where shims report events
package shimv2

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"github.com/coracle-project/coracle/runtime"
	"github.com/coracle-project/coracle/runtime/internal/base"
)

// Name is what records of containers call this engine.
const Name = "shim"

// Config is what an Engine needs.
type Config struct {
	// StateDir holds one directory per container; other engines may share it.
	StateDir string
	// RootDir is for bundles and sockets.
	RootDir string
	// Publisher is a program that passes an event on, for shims which execute one:
	// PROGRAM --address ADDRESS publish --topic TOPIC --namespace NAMESPACE.
	Publisher string
	// Log gets warnings. nil is slog.Default().
	Log *slog.Logger
}

// Engine implements runtime.Engine for containers whose CreateOptions.Handler is a
// ShimHandler.
type Engine struct {
	store              *base.Store
	rootDir, publisher string
	events             events
	patience           time.Duration // for a shim to read a request

	mu     sync.Mutex
	conns  map[string]*conn   // by address
	lives  map[string]*live   // by container
	groups map[string]*holder // by the shim's name and the sandbox
}

var _ runtime.Engine = (*Engine)(nil)

// New checks the configuration. It touches nothing.
func New(cfg Config) (*Engine, error) {
	store, err := base.NewStore(cfg.StateDir, cfg.Log)
	if err != nil {
		return nil, err
	}
	if !filepath.IsAbs(cfg.RootDir) {
		return nil, fmt.Errorf("make engine: directory %q is not an absolute path", cfg.RootDir)
	}
	return &Engine{
		store: store, rootDir: cfg.RootDir, publisher: cfg.Publisher, patience: defaultPatience,
		conns: map[string]*conn{}, lives: map[string]*live{}, groups: map[string]*holder{},
	}, nil
}

// Load implements runtime.Engine.
func (e *Engine) Load(_ context.Context, id string) (runtime.Container, error) {
	rec, err := e.store.Load(id)
	if err != nil {
		return nil, err
	}
	if rec.Engine != Name {
		return nil, fmt.Errorf("load container %s: engine %q made it: %w", id, rec.Engine, runtime.ErrNotFound)
	}
	var o own
	if err := json.Unmarshal(rec.Own, &o); err != nil {
		return nil, fmt.Errorf("load container %s: read the container's record: %w", id, err)
	}
	if err := e.events.listen(e.rootDir, e.noteOOM); err != nil {
		e.store.Log().Warn("shims cannot report events", "err", err)
	}
	return e.container(rec, o), nil
}

// List implements runtime.Engine.
func (e *Engine) List(context.Context) ([]string, error) { return e.store.List() }

// Close ends all connections. Shims and containers live on.
func (e *Engine) Close() error {
	e.store.Close()
	e.mu.Lock()
	for _, c := range e.conns {
		c.client.Close()
	}
	clear(e.conns)
	e.mu.Unlock()
	return e.events.close()
}

// own is what this engine keeps in a container's record.
type own struct {
	// Program is the shim's.
	Program string `json:"program"`
	// Group is the sandbox by which the shim groups containers.
	Group string `json:"group"`
	// Address and Version are what the shim has told at its start.
	Address string `json:"address,omitempty"`
	Version int32  `json:"version,omitempty"`
}

// live is what is known of a container while this process runs.
type live struct {
	ending holder // held while its end is waited for
	oom    bool   // guarded by Engine.mu
}

func (e *Engine) live(id string) *live {
	e.mu.Lock()
	defer e.mu.Unlock()
	l := e.lives[id]
	if l == nil {
		l = &live{ending: newHolder()}
		e.lives[id] = l
	}
	return l
}

func (e *Engine) forget(id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.lives, id)
}

// noteOOM is called when a shim reports that a container ran out of memory.
func (e *Engine) noteOOM(id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if l := e.lives[id]; l != nil {
		l.oom = true
	}
}

func (e *Engine) ranOut(id string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	l := e.lives[id]
	return l != nil && l.oom
}

// takeGroup takes what is held while a shim of a sandbox is started, or may end: a container that
// comes must not meet a shim that goes.
func (e *Engine) takeGroup(ctx context.Context, o *own) (*holder, error) {
	for {
		h := e.group(o)
		if err := h.take(ctx); err != nil {
			return nil, err
		}
		if e.group(o) == h {
			return h, nil
		}
		h.give() // it was dropped meanwhile, and others hold another
	}
}

func (e *Engine) group(o *own) *holder {
	key := o.Program + " " + o.Group
	e.mu.Lock()
	defer e.mu.Unlock()
	h := e.groups[key]
	if h == nil {
		n := newHolder()
		h = &n
		e.groups[key] = h
	}
	return h
}

// dropGroup forgets the lock of a sandbox whose last container is gone. It is held by the caller.
func (e *Engine) dropGroup(o *own) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.groups, o.Program+" "+o.Group)
}

// holder is a lock that can be waited for no longer than a context lasts.
type holder struct{ free chan struct{} }

func newHolder() holder {
	h := holder{make(chan struct{}, 1)}
	h.free <- struct{}{}
	return h
}

func (h holder) take(ctx context.Context) error {
	select {
	case <-h.free:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (h holder) give() { h.free <- struct{}{} }

// Package oci is an engine that has an OCI runtime's command make the containers: runc, crun,
// or whatever else takes their arguments (opencontainers/runtime-tools,
// docs/command-line-interface.md, and what every runtime has added since: --root, --log,
// --pid-file, --console-socket, exec, pause, resume, update).
//
//	COMMAND create --bundle B --pid-file P ID     init waits, its streams are ours
//	COMMAND start ID
//	COMMAND exec --detach --process F --pid-file P ID
//	COMMAND kill, pause, resume, update, state, delete
//
// # Whose children they are
//
// A command starts a process and ends; the process then belongs to the nearest subreaper above
// (prctl(2), PR_SET_CHILD_SUBREAPER), which the first Create or Exec makes this program. So the
// caller is the parent of containers here as with any other engine, and learns their exit
// statuses. What else comes to a subreaper is reaped by this package, see orphans.
//
// # State directory
//
//	<StateDir>/<id>/record.json  see base.Record
//	<StateDir>/<id>/bundle/      config.json as the command gets it
//	<StateDir>/<id>/gate         exists from Create until Start
//	<StateDir>/<id>/run-*/       files of a command that runs: log, pid, socket
//	<RootDir>/<sum>/             --root of the command with this sum of its path
//
// Statistics, process lists and signals to all processes are taken from the cgroups, which the
// command is told the path of; everything else is asked of the command.
package oci

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"log/slog"
	"path/filepath"

	"github.com/coracle-project/coracle/runtime"
	"github.com/coracle-project/coracle/runtime/internal/base"
)

// Name is what records of containers call this engine.
const Name = "oci"

// Config is what an Engine needs.
type Config struct {
	// StateDir holds one directory per container; other engines may share it.
	StateDir string
	// RootDir is for the commands' own state.
	RootDir string
	// Log gets warnings. nil is slog.Default().
	Log *slog.Logger
}

// Engine implements runtime.Engine for containers whose CreateOptions.Handler is an
// OCIHandler.
type Engine struct {
	store   *base.Store
	rootDir string
	orphans orphans
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
	return &Engine{store: store, rootDir: cfg.RootDir}, nil
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
	return e.container(rec, o), nil
}

// List implements runtime.Engine.
func (e *Engine) List(context.Context) ([]string, error) { return e.store.List() }

// Close ends what this package does in the background. Containers live on. Callers have waited
// for their processes that have ended.
func (e *Engine) Close() error {
	e.orphans.close()
	e.store.Close()
	return nil
}

// own is what this engine keeps in a container's record.
type own struct {
	Command       string `json:"command"`
	SystemdCgroup bool   `json:"systemdCgroup,omitempty"`
}

// rootOf is the directory in which a command keeps its own state. Formats differ between
// commands, so each has one.
func (e *Engine) rootOf(command string) string {
	sum := sha256.Sum256([]byte(command))
	return filepath.Join(e.rootDir, fmt.Sprintf("%x", sum[:8]))
}

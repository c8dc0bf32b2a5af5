// Package lc is the engine on runc's libcontainer, called in process.
//
// # State directory
//
//	<StateDir>/<id>/record.json      what this package knows (see record)
//	<StateDir>/<id>/<id>/state.json  libcontainer's own state, needed to exec
//	<StateDir>/<id>/<id>/exec.fifo   exists from Create until Start
//
// The directory is made first and exclusively, so two Creates of one id cannot
// both succeed, and never seen without its record (see claim.go). The record names the cgroups before they are made: whatever
// instruction a Create is killed at, Delete finds what it left.
//
// # Processes
//
// libcontainer starts the running executable again as "init" (see Init), which
// forks twice and reports the last child. That child belongs to the caller, who
// reaps it; the two stages before it are reaped here.
package lc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/coracle-project/coracle/runtime"
)

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
}

// Engine implements runtime.Engine. It holds no state besides the directory, so
// any number of them, in any number of processes, may share one.
type Engine struct {
	dir string
	log *slog.Logger

	sweepOnce sync.Once
}

var _ runtime.Engine = (*Engine)(nil)

// New checks the configuration. It touches nothing.
func New(cfg Config) (*Engine, error) {
	if !filepath.IsAbs(cfg.StateDir) {
		return nil, fmt.Errorf("make engine: state directory %q is not an absolute path", cfg.StateDir)
	}
	log := cfg.Log
	if log == nil {
		log = slog.Default()
	}
	bridgeLogs(log)
	return &Engine{dir: filepath.Clean(cfg.StateDir), log: log}, nil
}

// Load implements runtime.Engine.
func (e *Engine) Load(_ context.Context, id string) (runtime.Container, error) {
	if err := runtime.ValidateID(id); err != nil {
		return nil, fmt.Errorf("load container: %w", err)
	}
	rec, err := readRecord(e.containerDir(id))
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("load container %s: %w", id, runtime.ErrNotFound)
	}
	if err != nil {
		return nil, fmt.Errorf("load container %s: %w", id, err)
	}
	return &container{engine: e, rec: rec}, nil
}

// List implements runtime.Engine.
func (e *Engine) List(_ context.Context) ([]string, error) {
	e.sweepOnce.Do(e.sweep)
	entries, err := os.ReadDir(e.dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list containers: %w", err)
	}
	var ids []string
	for _, entry := range entries {
		if !entry.IsDir() || runtime.ValidateID(entry.Name()) != nil {
			continue
		}
		if _, err := os.Stat(filepath.Join(e.dir, entry.Name(), recordFile)); err == nil {
			ids = append(ids, entry.Name())
		}
	}
	slices.Sort(ids)
	return ids, nil
}

func (e *Engine) containerDir(id string) string { return filepath.Join(e.dir, id) }

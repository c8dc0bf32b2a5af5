package main

import (
	"log/slog"
	"os"
	"path/filepath"

	"github.com/coracle-project/coracle/runtime"
	"github.com/coracle-project/coracle/runtime/engine"
	"github.com/coracle-project/coracle/runtime/handler"
	"github.com/coracle-project/coracle/runtime/lc"
	"github.com/coracle-project/coracle/runtime/oci"
	"github.com/coracle-project/coracle/runtime/shimv2"
)

// openEngines makes all engines on a shim's state directory: own, of a name, with libcontainer
// for what ours leaves to it, and all of them, which is own but for containers with a handler.
func openEngines(name, state string, log *slog.Logger) (own *engine.Engine, all *handler.Engine, err error) {
	dir := filepath.Join(state, "engine")
	fallback, err := lc.New(lc.Config{StateDir: dir, Log: log})
	if err != nil {
		return nil, nil, err
	}
	if own, err = engine.Open(name, engine.Config{StateDir: dir, Log: log, Fallback: fallback}); err != nil {
		return nil, nil, err
	}
	commands, err := oci.New(oci.Config{StateDir: dir, RootDir: filepath.Join(state, "oci"), Log: log})
	if err != nil {
		return nil, nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, nil, err
	}
	shims, err := shimv2.New(shimv2.Config{StateDir: dir, RootDir: filepath.Join(state, "v2"), Publisher: self, Log: log})
	if err != nil {
		return nil, nil, err
	}
	all, err = handler.New(dir, engine.Name, own,
		handler.Other{Prefix: runtime.OCIHandler, Name: oci.Name, Engine: commands},
		handler.Other{Prefix: runtime.ShimHandler, Name: shimv2.Name, Engine: shims})
	return own, all, err
}

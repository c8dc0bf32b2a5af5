package main

import (
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/coracle-project/coracle/runtime"
	"github.com/coracle-project/coracle/runtime/engine"
	"github.com/coracle-project/coracle/runtime/handler"
	"github.com/coracle-project/coracle/runtime/lc"
	"github.com/coracle-project/coracle/runtime/oci"
	"github.com/coracle-project/coracle/runtime/plan"
	"github.com/coracle-project/coracle/runtime/shimv2"
	"github.com/coracle-project/coracle/shim/steps"
)

// openEngines makes all engines on a shim's state directory: own, of a name, with libcontainer
// for what ours leaves to it, and all of them, which is own but for containers with a handler.
func openEngines(name, state string, log *slog.Logger) (own *engine.Engine, all *handler.Engine, err error) {
	dir := filepath.Join(state, "engine")
	fallback, err := lc.New(lc.Config{StateDir: dir, Log: log})
	if err != nil {
		return nil, nil, err
	}
	if own, err = engine.Open(name, engine.Config{StateDir: dir, Log: log, Fallback: fallback, Made: leaveSteps(dir, log)}); err != nil {
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

// leaveSteps leaves where the time of making a container went, for coracle trace. That it cannot is
// no reason to fail.
func leaveSteps(dir string, log *slog.Logger) func(id string, took []plan.Step) {
	return func(id string, took []plan.Step) {
		began := time.Now()
		for _, s := range took {
			began = began.Add(-s.Took)
		}
		all := make([]steps.Step, len(took))
		for i, s := range took {
			all[i] = steps.Step{What: s.What, Began: began, Took: s.Took}
			began = began.Add(s.Took)
		}
		if err := steps.Write(dir, id, all); err != nil {
			log.Warn("steps of a container not written", "container", id, "err", err)
		}
	}
}

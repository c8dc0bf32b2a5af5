package lc

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runc/libcontainer/configs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/coracle-project/coracle/internal/atomicfile"
	"github.com/coracle-project/coracle/runtime"
	"github.com/coracle-project/coracle/runtime/internal/base"
)

// Foreign is a handle by which libcontainer checkpoints a container that another engine has
// made from this configuration. It writes the state that libcontainer would have written,
// next to the record, where deleting the container removes it.
func (e *Engine) Foreign(rec *base.Record, spec *specs.Spec) (runtime.Checkpointer, error) {
	cfg, err := e.libcontainerConfig(rec.ID, spec, runtime.CreateOptions{Bundle: rec.Bundle})
	if err != nil {
		return nil, err
	}
	c := e.container(rec)
	proc := filepath.Join("/proc", strconv.Itoa(rec.Init.Pid))
	state := libcontainer.State{
		BaseState: libcontainer.BaseState{
			ID: rec.ID, InitProcessPid: rec.Init.Pid, InitProcessStartTime: rec.Init.Start, Created: rec.Created, Config: *cfg,
		},
		CgroupPaths: rec.CgroupPaths, NamespacePaths: map[configs.NamespaceType]string{},
	}
	for _, t := range configs.NamespaceTypes() {
		if file := configs.NsName(t); configs.IsNamespaceSupported(t) {
			state.NamespacePaths[t] = filepath.Join(proc, "ns", file)
		}
	}
	// The streams that a restore connects again.
	for fd := range 3 {
		target, err := os.Readlink(filepath.Join(proc, "fd", strconv.Itoa(fd)))
		if err != nil {
			return nil, fmt.Errorf("look at the container's streams: %w", err)
		}
		state.ExternalDescriptors = append(state.ExternalDescriptors, target)
	}
	data, err := json.Marshal(state)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(c.libDir(), 0o700); err != nil {
		return nil, err
	}
	return c, atomicfile.Write(filepath.Join(c.libDir(), "state.json"), data, 0o600)
}

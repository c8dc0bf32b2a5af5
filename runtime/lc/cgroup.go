package lc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/opencontainers/cgroups"
	// Registers itself as what sets device rules.
	_ "github.com/opencontainers/cgroups/devices"
	"github.com/opencontainers/cgroups/manager"
	"github.com/opencontainers/runc/libcontainer/specconv"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/runtime"
)

// cgroupManager makes a manager of the container's cgroups. It costs next to
// nothing and is not kept, because a manager is not safe for concurrent use.
func (r *record) cgroupManager() (cgroups.Manager, error) {
	return manager.NewWithPaths(&cgroups.Cgroup{
		Name: r.Cgroup.Name, Parent: r.Cgroup.Parent, Path: r.Cgroup.Path,
		ScopePrefix: r.Cgroup.ScopePrefix, Systemd: r.Cgroup.Systemd, Rootless: r.Cgroup.Rootless,
		Resources: &cgroups.Resources{},
	}, r.paths())
}

func (r *record) paths() map[string]string {
	out := make(map[string]string, len(r.CgroupPaths))
	for k, v := range r.CgroupPaths {
		out[k] = v
	}
	return out
}

// listPath is the hierarchy whose process list stands for the container: the
// devices controller on v1, which every container has, else the unified one.
func (r *record) listPath() string {
	if p := r.CgroupPaths["devices"]; p != "" {
		return p
	}
	return r.CgroupPaths[""]
}

// pids lists the processes of the cgroup and those below it. A cgroup that is
// gone has none. Processes that the caller's pid namespace cannot see read as 0
// and are left out: signalling 0 would hit the caller's own process group.
func (r *record) pids() ([]int, error) {
	path := r.listPath()
	if path == "" {
		return nil, nil
	}
	pids, err := cgroups.GetAllPids(path)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(pids, func(pid int) bool { return pid <= 0 || pid == os.Getpid() }), nil
}

func (r *record) freeze(state cgroups.FreezerState) error {
	cgm, err := r.cgroupManager()
	if err != nil {
		return err
	}
	return cgm.Freeze(state)
}

// thaw lets a killed process of a paused container die: on v1 a frozen process
// does not act on signals.
func (r *record) thaw() {
	if r.CgroupPaths["freezer"] == "" {
		return
	}
	if cgm, err := r.cgroupManager(); err == nil {
		if state, err := cgm.GetFreezerState(); err == nil && state == cgroups.Frozen {
			_ = cgm.Freeze(cgroups.Thawed)
		}
	}
}

// Pids implements runtime.Container.
func (c *container) Pids(context.Context) ([]int, error) {
	pids, err := c.rec.pids()
	if err != nil {
		return nil, c.fail("list processes of", err)
	}
	slices.Sort(pids)
	return slices.Compact(pids), nil
}

// Update implements runtime.Container.
func (c *container) Update(_ context.Context, r *specs.LinuxResources) error {
	if err := c.update(r); err != nil {
		return c.fail("update", err)
	}
	return nil
}

func (c *container) update(r *specs.LinuxResources) error {
	if r == nil {
		return nil
	}
	if err := runtime.ValidateResources(r); err != nil {
		return err
	}
	if !c.rec.Init.alive() {
		return runtime.ErrNotRunning
	}
	cg, err := specconv.CreateCgroupConfig(&specconv.CreateOpts{
		CgroupName: c.rec.ID,
		Spec:       &specs.Spec{Linux: &specs.Linux{Resources: r}},
	}, nil)
	if err != nil {
		return fmt.Errorf("%w: %w", runtime.ErrInvalidSpec, err)
	}
	// Device rules stay as they are, as with runc. containerd sends the spec's with
	// every update: in force alone, without the devices that Create adds to them
	// (runtime spec, config-linux.md#default-devices), they would take even
	// /dev/null away.
	cg.Resources.SkipDevices = true
	cgm, err := c.rec.cgroupManager()
	if err != nil {
		return err
	}
	return cgm.Set(cg.Resources)
}

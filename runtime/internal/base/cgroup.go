package base

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/cgroups"
	// Registers itself as what sets device rules.
	_ "github.com/opencontainers/cgroups/devices"
	"github.com/opencontainers/cgroups/manager"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/runtime"
	"github.com/coracle-project/coracle/runtime/validate"
)

// CgroupManager makes a manager of the container's cgroups. It costs next to
// nothing and is not kept, because a manager is not safe for concurrent use.
func (r *Record) CgroupManager() (cgroups.Manager, error) {
	return manager.NewWithPaths(&cgroups.Cgroup{
		Name: r.Cgroup.Name, Parent: r.Cgroup.Parent, Path: r.Cgroup.Path,
		ScopePrefix: r.Cgroup.ScopePrefix, Systemd: r.Cgroup.Systemd, Rootless: r.Cgroup.Rootless,
		Resources: &cgroups.Resources{},
	}, r.paths())
}

func (r *Record) paths() map[string]string {
	out := make(map[string]string, len(r.CgroupPaths))
	for k, v := range r.CgroupPaths {
		out[k] = v
	}
	return out
}

// CgroupPaths implements runtime.CgroupHolder.
func (c *Container) CgroupPaths() map[string]string { return c.Rec.paths() }

// InitCgroup is the cgroup of the unified hierarchy that init is in: the container's, unless the
// container, or who it is delegated to, has moved init.
func (r *Record) InitCgroup() (string, error) {
	file := fmt.Sprintf("/proc/%d/cgroup", r.Init.Pid)
	in, err := cgroups.ParseCgroupFile(file)
	if err != nil {
		return "", err
	}
	if !r.Init.Alive() { // the number may be another's now
		return "", runtime.ErrNotRunning
	}
	root, inner := unifiedRoot(), in[""]
	if root == "" || !filepath.IsAbs(inner) || slices.Contains(strings.Split(inner, "/"), "..") {
		return "", fmt.Errorf("%s: unified cgroup %q is not below %q", file, inner, root)
	}
	return filepath.Join(root, inner), nil
}

// listPath is the hierarchy whose process list is used for the container: the
// devices controller on v1, which every container has, else the unified one.
func (r *Record) listPath() string {
	if p := r.CgroupPaths["devices"]; p != "" {
		return p
	}
	return r.CgroupPaths[""]
}

// pids lists the processes of the cgroup and those below it, but for the caller. A cgroup that is
// gone has none. Processes that the caller's pid namespace cannot see read as 0
// and are left out: signalling 0 would hit the caller's own process group.
func (r *Record) pids() ([]int, error) {
	pids, _, err := r.pidsAndMe()
	return pids, err
}

// pidsAndMe is pids, and whether the caller is among them: then nothing may be done to the cgroup
// as a whole.
func (r *Record) pidsAndMe() (pids []int, me bool, err error) {
	path := r.listPath()
	if path == "" {
		return nil, false, nil
	}
	pids, err = cgroups.GetAllPids(path)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	me = slices.Contains(pids, os.Getpid())
	return slices.DeleteFunc(pids, func(pid int) bool { return pid <= 0 || pid == os.Getpid() }), me, nil
}

func (r *Record) freeze(state cgroups.FreezerState) error {
	cgm, err := r.CgroupManager()
	if err != nil {
		return err
	}
	return cgm.Freeze(state)
}

// thaw lets a killed process of a paused container die: on v1 a frozen process
// does not act on signals. It succeeds if the cgroup is gone.
func (r *Record) thaw() error {
	if r.CgroupPaths["freezer"] == "" {
		return nil
	}
	cgm, err := r.CgroupManager()
	if err != nil {
		return err
	}
	state, err := cgm.GetFreezerState()
	if err == nil && state == cgroups.Frozen {
		err = cgm.Freeze(cgroups.Thawed)
	}
	return unlessGone(err)
}

// unlessGone returns nil for the error of a cgroup that is gone.
func unlessGone(err error) error {
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return nil
	}
	return err
}

// Pids implements runtime.Container.
func (c *Container) Pids(context.Context) ([]int, error) {
	pids, err := c.Rec.pids()
	if err != nil {
		return nil, c.Fail("list processes of", err)
	}
	slices.Sort(pids)
	return slices.Compact(pids), nil
}

// Update implements runtime.Container.
func (c *Container) Update(_ context.Context, r *specs.LinuxResources) error {
	if err := c.update(r); err != nil {
		return c.Fail("update", err)
	}
	return nil
}

func (c *Container) update(r *specs.LinuxResources) error {
	if r == nil {
		return nil
	}
	if err := validate.Resources(r); err != nil {
		return err
	}
	if !c.Rec.Init.Alive() {
		return runtime.ErrNotRunning
	}
	want, err := limits(r)
	if err != nil {
		return err
	}
	// Device rules stay as they are, as with runc. containerd sends the spec's with
	// every update: in force alone, without the devices that Create adds to them
	// (runtime spec, config-linux.md#default-devices), they would take even
	// /dev/null away.
	want.SkipDevices = true
	if err := HasUnified(r); err != nil {
		return err
	}
	if err := c.Rec.completeQuota(want); err != nil {
		return err
	}
	cgm, err := c.Rec.CgroupManager()
	if err != nil {
		return err
	}
	return cgm.Set(want)
}

// MustBeEmpty refuses a cgroup that someone's processes are in. Once the record
// names a cgroup, everything in it and below it counts as the container's and dies
// with it.
func MustBeEmpty(paths map[string]string) error {
	for _, path := range paths {
		pids, err := cgroups.GetAllPids(path)
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENODEV) {
			continue
		}
		if err != nil {
			return fmt.Errorf("look into cgroup %s: %w", path, err)
		}
		if len(pids) > 0 {
			return fmt.Errorf("container's cgroup is not empty: %s holds %d processes: %w; choose another linux.cgroupsPath",
				path, len(pids), runtime.ErrInvalidSpec)
		}
	}
	return nil
}

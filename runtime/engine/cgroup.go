package engine

import (
	"fmt"
	"path/filepath"
	"slices"

	"github.com/opencontainers/cgroups"
	// Registers itself as what sets device rules.
	_ "github.com/opencontainers/cgroups/devices"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/runtime"
	"github.com/coracle-project/coracle/runtime/internal/base"
	"github.com/coracle-project/coracle/runtime/plan"
)

// cgroup is a container's cgroups in the making. Processes get into them by themselves
// (version 1) or by clone3(2).
type cgroup struct {
	config  *cgroups.Cgroup
	manager cgroups.Manager
	unified bool // there is no other hierarchy
	// none: the caller may not make cgroups, and there are no limits. The container stays in the
	// caller's.
	none bool
	// owner is who the cgroup is delegated to, -1 for no one else.
	owner int
}

func (h *hierarchies) newCgroup(id string, spec *specs.Spec, opts runtime.CreateOptions) (*cgroup, error) {
	config, err := base.CgroupConfig(id, spec.Linux)
	if opts.SystemdCgroup {
		config, err = base.SystemdCgroupConfig(id, spec)
	}
	if err != nil {
		return nil, err
	}
	if err := base.HasUnified(spec.Linux.Resources); err != nil {
		return nil, err
	}
	if config.Rootless = rootless(); opts.RootlessCgroups != nil {
		config.Rootless = *opts.RootlessCgroups
	}
	m, err := h.newManager(config)
	if err != nil {
		return nil, err
	}
	if config.Rootless && !config.Systemd {
		return rootlessCgroup(config, m, spec.Linux.Resources)
	}
	if err := base.MustBeEmpty(m.GetPaths()); err != nil {
		return nil, err
	}
	// Init would never begin.
	if state, err := m.GetFreezerState(); err == nil && state == cgroups.Frozen {
		return nil, fmt.Errorf("container's cgroup unexpectedly frozen: %w; thaw it, or choose another linux.cgroupsPath", runtime.ErrInvalidSpec)
	}
	return &cgroup{config: config, manager: m, unified: cgroups.IsCgroup2UnifiedMode(), owner: delegate(spec)}, nil
}

// paths are the container's cgroups, by controller; "" is the unified hierarchy's.
func (c *cgroup) paths() map[string]string {
	if c.none {
		return map[string]string{}
	}
	return c.manager.GetPaths()
}

// make makes the directories and sets the limits. systemd's cgroups are made with a process in
// them; see enter.
func (c *cgroup) make() error {
	if c.none || c.config.Systemd {
		return nil
	}
	const noPID = -1
	done, err := false, error(nil)
	if !c.unified {
		done, err = c.makeV1()
	}
	if err == nil && !done {
		err = c.manager.Apply(noPID)
	}
	if err != nil {
		return fmt.Errorf("make cgroup: %w", err)
	}
	return c.limit()
}

// enter has systemd make the cgroup and move a process there.
func (c *cgroup) enter(pid int) error {
	if err := c.manager.Apply(pid); err != nil {
		return fmt.Errorf("have systemd make the cgroup: %w", err)
	}
	return c.limit()
}

func (c *cgroup) limit() error {
	if err := c.manager.Set(c.config.Resources); err != nil {
		return fmt.Errorf("set resources of cgroup: %w", err)
	}
	if c.unified && c.owner >= 0 {
		return giveCgroup(c.paths()[""], c.owner)
	}
	return nil
}

// directory opens the cgroup of the unified hierarchy, which a child is cloned into; -1 if
// there is none. On a hybrid host, too: to move there would take a lock for which the kernel
// waits 10 ms and more (cgroup_threadgroup_rwsem).
func (c *cgroup) directory() (int, error) {
	path := c.paths()[""]
	if path == "" || c.config.Systemd {
		return -1, nil
	}
	fd, err := unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("open cgroup %s: %w", path, err)
	}
	return fd, nil
}

// facts are what a plan must know.
func (c *cgroup) facts(spec *specs.Spec, known *hierarchies) (plan.Cgroup, error) {
	paths := c.paths()
	f := plan.Cgroup{Unified: c.unified, Own: paths[""], Wait: c.config.Systemd}
	if !c.unified && !c.config.Systemd {
		f.Tasks = taskFiles(paths)
	}
	wanted := func(m specs.Mount) bool { return m.Type == "cgroup" }
	if c.unified || !slices.ContainsFunc(spec.Mounts, wanted) {
		return f, nil
	}
	found, err := known.known()
	if err != nil {
		return f, err
	}
	for i := range found {
		h := &found[i]
		// Controllers that no one limits leave the container where this process is.
		dir := paths[h.keys()[0]]
		own := dir != ""
		if !own {
			dir = h.path("")
		}
		f.Hierarchies = append(f.Hierarchies, h.asMounted(dir, own))
	}
	return f, nil
}

// taskFiles are the files by which a process joins cgroups of version 1. Controllers may share
// a hierarchy.
func taskFiles(paths map[string]string) []string {
	var out []string
	for controller, dir := range paths {
		if controller != "" {
			out = append(out, filepath.Join(dir, "tasks"))
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

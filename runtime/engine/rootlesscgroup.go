package engine

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"strings"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/cgroups/manager"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/runtime/internal/base"
)

// rootlessCgroup is for a caller who may not be allowed to make cgroups. Those that it may make
// are made; without the others it goes on, unless it names them or asks for a limit.
func rootlessCgroup(config *cgroups.Cgroup, m cgroups.Manager, limits *specs.LinuxResources) (*cgroup, error) {
	config.Resources.SkipDevices = true // takes rights on the host
	c := &cgroup{config: config, unified: cgroups.IsCgroup2UnifiedMode(), owner: -1}
	usable := maps.Clone(m.GetPaths())
	for controller, dir := range usable {
		err := mayMakeCgroup(dir, controller == "")
		if err == nil {
			continue
		}
		if config.Path != "" && (controller != "" || c.unified) {
			return nil, fmt.Errorf("make cgroup %s: %w; remove linux.cgroupsPath, or have the cgroup above it delegated to this user", dir, err)
		}
		delete(usable, controller)
	}
	if err := base.MustBeEmpty(usable); err != nil {
		return nil, err
	}
	if c.none = c.unified && len(usable) == 0; c.none {
		if field := limited(limits); field != "" {
			return nil,
				fmt.Errorf("%s cannot be set: this user may make no cgroup; remove it, or have a cgroup delegated to this user (--systemd-cgroup)",
					field)
		}
		return c, nil
	}
	var err error
	c.manager, err = manager.NewWithPaths(config, usable)
	return c, err
}

// limited is a limit that needs a cgroup, "" if there is none.
func limited(r *specs.LinuxResources) string {
	const field = "linux.resources."
	switch {
	case r == nil:
		return ""
	case r.Memory != nil:
		return field + "memory"
	case r.CPU != nil:
		return field + "cpu"
	case r.Pids != nil:
		return field + "pids"
	case r.BlockIO != nil:
		return field + "blockIO"
	case len(r.HugepageLimits) > 0:
		return field + "hugepageLimits"
	case len(r.Rdma) > 0:
		return field + "rdma"
	case len(r.Unified) > 0:
		return field + "unified"
	}
	return ""
}

// mayMakeCgroup says whether this process may make a cgroup and move processes of its own there.
// On the unified hierarchy that takes the right to move them away from where it is, too
// (cgroups(7), "Cgroup delegation").
func mayMakeCgroup(dir string, unified bool) error {
	above := filepath.Dir(dir)
	for {
		var st unix.Stat_t
		err := unix.Stat(above, &st)
		if err == nil {
			break
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		above = filepath.Dir(above)
	}
	if err := writable(above); err != nil || !unified {
		return err
	}
	if err := writable(filepath.Join(above, "cgroup.procs")); err != nil {
		return err
	}
	own, err := cgroups.ParseCgroupFile("/proc/self/cgroup")
	if err != nil {
		return err
	}
	root := "/sys/fs/cgroup"
	if !cgroups.IsCgroup2UnifiedMode() {
		root = "/sys/fs/cgroup/unified" // of a hybrid host, as the library has it
	}
	return writable(filepath.Join(commonAncestor(filepath.Join(root, own[""]), above), "cgroup.procs"))
}

func writable(path string) error {
	if err := unix.Faccessat(unix.AT_FDCWD, path, unix.W_OK, unix.AT_EACCESS); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// commonAncestor is the deepest directory that is above both, or one of them.
func commonAncestor(a, b string) string {
	for a != b && !strings.HasPrefix(b, strings.TrimSuffix(a, "/")+"/") {
		a = filepath.Dir(a)
	}
	return a
}

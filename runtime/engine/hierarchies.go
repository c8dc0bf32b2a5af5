package engine

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/cgroups/manager"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/internal/kernfile"
	"github.com/coracle-project/coracle/runtime/plan"
)

// cgroupRoot is where hierarchies are mounted, each in a directory with its controllers' names.
const cgroupRoot = "/sys/fs/cgroup"

// hierarchy is one of version 1 on this host.
type hierarchy struct {
	mount string // the directory below cgroupRoot
	// names are its controllers, or its only name if it has none, such as systemd.
	names []string
	named bool
	own   string // this process's cgroup
}

// hierarchies are those of version 1, as they were last found. They do not change while a machine
// runs; where this process is in them can. The zero value is ready.
type hierarchies struct {
	found atomic.Pointer[[]hierarchy]
}

// known returns those that are mounted, and where this process was in each.
func (h *hierarchies) known() ([]hierarchy, error) {
	if known := h.found.Load(); known != nil {
		return *known, nil
	}
	return h.find()
}

// find returns those that are mounted, and where this process is in each.
func (h *hierarchies) find() ([]hierarchy, error) {
	found, ok := usualHierarchies()
	if !ok {
		var err error
		if found, err = lookUpHierarchies(); err != nil {
			return nil, err
		}
	}
	h.found.Store(&found)
	return found, nil
}

// usualHierarchies finds them in their usual places, in the order of their mounts. The cgroup
// library reads the machine's mounts and this process's cgroups again for every controller, and
// the table of mounts is long on a busy node; this reads one short file. false says that
// something is not where it usually is.
func usualHierarchies() ([]hierarchy, bool) {
	text, err := kernfile.Read("/proc/self/cgroup")
	if err != nil {
		return nil, false
	}
	var root unix.Stat_t
	if err := unix.Lstat(cgroupRoot, &root); err != nil {
		return nil, false
	}
	var out []hierarchy
	for line := range strings.Lines(string(text)) {
		fields := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3) // cgroups(7), /proc/[pid]/cgroup
		if len(fields) != 3 {
			return nil, false
		}
		if fields[1] == "" { // the unified one
			continue
		}
		name, named := strings.CutPrefix(fields[1], cgroups.CgroupNamePrefix)
		h := hierarchy{mount: filepath.Join(cgroupRoot, name), names: strings.Split(name, ","), named: named, own: fields[2]}
		if !isWholeHierarchy(h.mount, root.Dev) {
			return nil, false
		}
		out = append(out, h)
	}
	slices.Reverse(out)
	return out, len(out) > 0
}

// lookUpHierarchies finds them in the machine's mounts.
func lookUpHierarchies() ([]hierarchy, error) {
	mounts, err := cgroups.GetCgroupMounts(false)
	if err != nil {
		return nil, err
	}
	controllers, err := cgroups.GetAllSubsystems()
	if err != nil {
		return nil, err
	}
	var out []hierarchy
	for _, m := range mounts {
		if len(m.Subsystems) == 0 {
			continue
		}
		h := hierarchy{mount: m.Mountpoint, names: m.Subsystems, named: !slices.Contains(controllers, m.Subsystems[0])}
		own, err := cgroups.GetOwnCgroupPath(h.keys()[0])
		if err != nil {
			return nil, err
		}
		h.own = strings.TrimPrefix(own, h.mount)
		out = append(out, h)
	}
	if len(out) == 0 {
		return nil, errors.New("no cgroup hierarchy is mounted")
	}
	return out, nil
}

// isWholeHierarchy says whether the root of a hierarchy of version 1 is mounted there. A part of
// one, which a container may have, has another inode.
func isWholeHierarchy(dir string, notOn uint64) bool {
	const rootInode = 1 // of kernfs
	var st unix.Stat_t
	var fs unix.Statfs_t
	return unix.Lstat(dir, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR && st.Dev != notOn && st.Ino == rootInode &&
		unix.Statfs(dir, &fs) == nil && fs.Type == unix.CGROUP_SUPER_MAGIC
}

// managed are the hierarchies that the cgroup library manages, by its keys. It must not be
// asked for others.
var managed = map[string]bool{
	"cpuset": true, "devices": true, "memory": true, "cpu": true, "cpuacct": true, "pids": true, "blkio": true, "hugetlb": true,
	"net_cls": true, "net_prio": true, "perf_event": true, "freezer": true, "rdma": true, "name=systemd": true, "misc": true,
}

// newManager is manager.New without reading the machine's mounts.
func (h *hierarchies) newManager(config *cgroups.Cgroup) (cgroups.Manager, error) {
	if cgroups.IsCgroup2UnifiedMode() || config.Systemd {
		return manager.New(config)
	}
	inner := config.Path
	if inner == "" {
		inner = filepath.Join(config.Parent, config.Name)
	}
	find := h.known
	if !filepath.IsAbs(inner) {
		find = h.find
	}
	found, err := find()
	if err != nil {
		return nil, err
	}
	paths := map[string]string{}
	for i := range found {
		for _, key := range found[i].keys() {
			if managed[key] {
				paths[key] = found[i].path(inner)
			}
		}
	}
	if paths["devices"] == "" {
		return nil, errors.New("no cgroup hierarchy with the controller devices is mounted")
	}
	if cgroups.IsCgroup2HybridMode() {
		paths[""] = filepath.Join(cgroupRoot, "unified", inner)
	}
	return manager.NewWithPaths(config, paths)
}

// keys are what the cgroup library calls the hierarchy.
func (h *hierarchy) keys() []string {
	if h.named {
		return []string{cgroups.CgroupNamePrefix + h.names[0]}
	}
	return h.names
}

// path is a cgroup in the hierarchy: below this process's own if it is relative.
func (h *hierarchy) path(inner string) string {
	if filepath.IsAbs(inner) {
		return filepath.Join(h.mount, inner)
	}
	return filepath.Join(h.mount, h.own, inner)
}

// asMounted is the hierarchy as a container mounts it, at a cgroup: its own, or this process's.
func (h *hierarchy) asMounted(dir string, own bool) plan.Hierarchy {
	name := filepath.Base(h.mount)
	options := strings.Join(h.names, ",")
	if h.named {
		options = "none," + cgroups.CgroupNamePrefix + h.names[0]
	}
	return plan.Hierarchy{
		Name: name, Path: dir, Own: own, Options: options,
		Links: slices.DeleteFunc(slices.Clone(h.names), func(l string) bool { return l == name }),
	}
}

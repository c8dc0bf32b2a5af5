package engine

import (
	"fmt"
	"path/filepath"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/cgroups/manager"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/runtime"
	"github.com/coracle-project/coracle/runtime/internal/base"
	"github.com/coracle-project/coracle/runtime/plan"
	"github.com/coracle-project/coracle/runtime/seccomp"
)

// PlanOptions returns the options with which Create would plan a container: the facts of this host
// as root has them, except for cgroups (see CgroupFacts). It creates nothing and starts nothing.
// bundle is an absolute path.
func PlanOptions(id string, spec *specs.Spec, bundle string) (plan.Options, error) {
	o := plan.Options{
		ID: id, Features: plan.Probe(), Permitted: ^plan.CapSet(0), IsDir: isDir, Bundle: bundle, Rootfs: spec.Root.Path,
	}
	if !filepath.IsAbs(o.Rootfs) {
		o.Rootfs = filepath.Join(bundle, o.Rootfs)
	}
	o.Home = homeIn(o.Rootfs, spec.Process.User.UID)
	var nofile unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &nofile); err != nil {
		return o, fmt.Errorf("getrlimit: %w", err)
	}
	o.NoFile = [2]uint64{nofile.Cur, nofile.Max}
	if spec.Linux != nil && spec.Linux.Seccomp != nil {
		f, err := seccomp.Compile(spec.Linux.Seccomp)
		if err != nil {
			return o, fmt.Errorf("%w: %w", runtime.ErrInvalidSpec, err)
		}
		if len(f.Insns) > 0 {
			o.Seccomp = &plan.Filter{Program: f.Insns, Flags: uint(f.Flags), Notify: f.Notify}
		}
	}
	return o, nil
}

// CgroupFacts are what a plan is told of this host's cgroups. It makes none.
func CgroupFacts(id string, spec *specs.Spec) (plan.Cgroup, error) {
	// Not newCgroup, which refuses a cgroup that is in use: it may be this very container's.
	config, err := base.CgroupConfig(id, spec.Linux)
	if err != nil {
		return plan.Cgroup{}, err
	}
	m, err := manager.New(config)
	if err != nil {
		return plan.Cgroup{}, err
	}
	c := &cgroup{config: config, manager: m, unified: cgroups.IsCgroup2UnifiedMode()}
	return c.facts(spec, new(hierarchies))
}

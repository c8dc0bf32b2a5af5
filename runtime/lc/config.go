package lc

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/moby/sys/userns"
	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/runc/libcontainer/configs"
	"github.com/opencontainers/runc/libcontainer/configs/validate"
	"github.com/opencontainers/runc/libcontainer/specconv"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/coracle-project/coracle/runtime"
)

// libcontainerConfig translates a valid spec. Errors are ErrInvalidSpec.
func (e *Engine) libcontainerConfig(id string, spec *specs.Spec, opts runtime.CreateOptions) (*configs.Config, error) {
	local, err := absolutePaths(spec, opts.Bundle)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", runtime.ErrInvalidSpec, err)
	}
	rootless := os.Geteuid() != 0
	rootlessCgroups := rootless || userns.RunningInUserNS()
	if opts.RootlessCgroups != nil {
		rootlessCgroups = *opts.RootlessCgroups
	}
	cfg, err := convert(&specconv.CreateOpts{
		CgroupName:       id,
		UseSystemdCgroup: opts.SystemdCgroup,
		NoPivotRoot:      opts.NoPivot,
		NoNewKeyring:     opts.NoNewKeyring,
		Spec:             local,
		RootlessEUID:     rootless,
		RootlessCgroups:  rootlessCgroups,
	})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", runtime.ErrInvalidSpec, err)
	}
	// specconv takes the bundle from the working directory, which belongs to
	// the whole process and so cannot be the bundle of each of its containers.
	cfg.Labels = slices.DeleteFunc(cfg.Labels, func(l string) bool { return strings.HasPrefix(l, "bundle=") })
	cfg.Labels = append(cfg.Labels, "bundle="+opts.Bundle)
	if cfg.Cgroups.Resources == nil {
		cfg.Cgroups.Resources = &cgroups.Resources{}
	}
	cfg.OomScoreAdj = e.store.AllowedOOMScore(id, cfg.OomScoreAdj)
	// Hooks after Start and after Delete are run by this package: libcontainer
	// runs poststart hooks before init is let go.
	delete(cfg.Hooks, configs.Poststart)
	delete(cfg.Hooks, configs.Poststop)
	if err := validate.Validate(cfg); err != nil {
		return nil, fmt.Errorf("%w: %w", runtime.ErrInvalidSpec, err)
	}
	return cfg, nil
}

// converting guards specconv's list of default devices.
var converting sync.Mutex

// convert is specconv's conversion for a process that makes more than one container: that one
// puts its own default devices into each configuration, and for a user namespace gives them to
// its root, so the containers after it would have devices that are not their root's.
func convert(opts *specconv.CreateOpts) (*configs.Config, error) {
	converting.Lock()
	defer converting.Unlock()
	cfg, err := specconv.CreateLibcontainerConfig(opts)
	if err == nil {
		for i, d := range cfg.Devices {
			own := *d
			cfg.Devices[i] = &own
		}
	}
	for _, d := range specconv.AllowedDevices {
		d.Uid, d.Gid = 0, 0
	}
	return cfg, err
}

// absolutePaths is a copy of spec in which no path depends on a working directory.
func absolutePaths(spec *specs.Spec, bundle string) (*specs.Spec, error) {
	out := *spec
	root := *spec.Root
	if !filepath.IsAbs(root.Path) {
		root.Path = filepath.Join(bundle, root.Path)
	}
	resolved, err := filepath.EvalSymlinks(root.Path)
	if err != nil {
		return nil, fmt.Errorf("root.path %q: %w", spec.Root.Path, err)
	}
	root.Path = resolved
	out.Root = &root
	out.Mounts = slices.Clone(spec.Mounts)
	for i := range out.Mounts {
		m := &out.Mounts[i]
		// Old specs leave the "/" out (runtime spec, config.md#mounts).
		m.Destination = filepath.Join("/", m.Destination)
		bind := slices.Contains(m.Options, "bind") || slices.Contains(m.Options, "rbind")
		if bind && !filepath.IsAbs(m.Source) {
			m.Source = filepath.Join(bundle, m.Source)
		}
	}
	return &out, nil
}

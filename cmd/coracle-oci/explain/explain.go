// Package explain describes what a container from an OCI configuration would be, and warns about
// what would let its program reach the host. It runs nothing. The description is made of the plan
// that create carries out.
package explain

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/coracle-project/coracle/runtime/engine"
	"github.com/coracle-project/coracle/runtime/plan"
)

// Request says what to explain.
type Request struct {
	ID     string
	Spec   *specs.Spec
	Bundle string
	// CgroupVersion is 1 or 2 for a usual host, 0 for this one.
	CgroupVersion int
	// Libcontainer is why libcontainer makes the container in any case; "" leaves it to the plan.
	Libcontainer string
}

// Container explains what create would do.
func Container(r Request) (*Document, error) {
	id, spec, bundle := r.ID, r.Spec, r.Bundle
	o, err := engine.PlanOptions(id, spec, bundle)
	if err != nil {
		return nil, err
	}
	switch r.CgroupVersion {
	case 0:
		if o.Cgroup, err = engine.CgroupFacts(id, spec); err != nil {
			return nil, err
		}
	case 1, 2:
		o.Cgroup = usualCgroup(r.CgroupVersion, cgroupName(id, spec))
	default:
		return nil, fmt.Errorf("--cgroup-version %d is unknown, use 1 or 2", r.CgroupVersion)
	}
	e := newDocument(bundle)
	isDir := o.IsDir
	o.IsDir = func(path string) (bool, error) {
		dir, err := isDir(path)
		if err != nil {
			e.warn(high, "mounts", fmt.Sprintf("the source %s cannot be used: %v", path, errors.Unwrap(err)),
				"create will fail", "make it before, or give another source")
			return filepath.Ext(path) == "", nil // a guess
		}
		return dir, nil
	}
	planned := spec
	p, err := plan.Create(spec, o)
	if errors.Is(err, plan.ErrUnsupported) {
		e.Engine, e.Because = engine.Libcontainer, err.Error()
		e.Warnings = nil
		planned = simplified(spec)
		p, err = plan.Create(planned, o)
	}
	if err != nil {
		return nil, err
	}
	if r.Libcontainer != "" {
		e.Engine, e.Because = engine.Libcontainer, r.Libcontainer
	}
	e.fromPlan(p)
	if planned != spec {
		e.Namespaces = namespacesOfSpec(spec)
	}
	e.fromSpec(spec, &o)
	if err := e.seccomp(spec, o.Seccomp); err != nil {
		return nil, err
	}
	e.dangers(spec)
	return e, nil
}

// Exec explains a further process of a container: the container's surroundings, and p in the place
// of its first process.
func Exec(r Request, p *specs.Process) (*Document, error) {
	in := *r.Spec
	in.Process, in.Hooks = p, nil // hooks belong to the container's life
	r.Spec = &in
	e, err := Container(r)
	if err != nil {
		return nil, err
	}
	o, err := engine.PlanOptions(r.ID, &in, r.Bundle)
	if err != nil {
		return nil, err
	}
	x, err := plan.Exec(&specs.Spec{Linux: &specs.Linux{}, Process: p}, p, e.joinable(), o)
	if err != nil {
		return nil, err
	}
	e.Process, e.Steps = newDocument(r.Bundle).Process, nil
	for _, op := range x.Ops {
		e.Steps = append(e.Steps, op.String())
		e.setting(op)
	}
	return e, nil
}

// simplified returns the configuration without what plans do not support. The explanation says
// which engine makes the container, and why.
func simplified(in *specs.Spec) *specs.Spec {
	s, l := *in, specs.Linux{}
	if in.Linux != nil {
		l = *in.Linux
	}
	s.Linux = &l
	isMount := func(n specs.LinuxNamespace) bool { return n.Type == specs.MountNamespace }
	l.Namespaces = append(slices.DeleteFunc(slices.Clone(l.Namespaces), isMount), specs.LinuxNamespace{Type: specs.MountNamespace})
	return &s
}

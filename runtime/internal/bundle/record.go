package bundle

import (
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/opencontainers/cgroups/manager"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/coracle-project/coracle/runtime"
	"github.com/coracle-project/coracle/runtime/internal/base"
	"github.com/coracle-project/coracle/runtime/validate"
)

// Begin checks what the named engine has been asked to create. It returns which program is to make
// the container, what opts.Handler says after the engine's prefix, and the record of it.
// runtime.ErrUnsupported for another engine's handler.
func Begin(engine, prefix, id string, spec *specs.Spec, opts runtime.CreateOptions) (program string, rec *base.Record, err error) {
	if err := runtime.ValidateID(id); err != nil {
		return "", nil, err
	}
	program, ok := strings.CutPrefix(opts.Handler, prefix)
	if !ok {
		return "", nil, fmt.Errorf("%w: handler %q does not begin with %s", runtime.ErrUnsupported, opts.Handler, prefix)
	}
	if err := validate.SpecOnHostMounts(spec, opts.Bundle); err != nil {
		return "", nil, err
	}
	if rec, err = newRecord(engine, id, spec, opts); err != nil {
		return "", nil, err
	}
	return program, rec, base.MustBeEmpty(rec.CgroupPaths)
}

// newRecord says what is about to be made. Where the cgroups will be is known beforehand but for
// systemd's.
func newRecord(engine, id string, spec *specs.Spec, opts runtime.CreateOptions) (*base.Record, error) {
	self, err := base.Identify(os.Getpid())
	if err != nil {
		return nil, err
	}
	rec := &base.Record{
		Engine: engine, ID: id, Bundle: opts.Bundle, Annotations: spec.Annotations,
		Creator: self, Created: time.Now().UTC(),
	}
	if opts.SystemdCgroup {
		return rec, nil
	}
	config, err := base.CgroupConfig(id, spec.Linux)
	if err != nil {
		return nil, err
	}
	m, err := manager.New(config)
	if err != nil {
		return nil, err
	}
	rec.Cgroup, rec.CgroupPaths = base.NameOf(config), m.GetPaths()
	return rec, nil
}

// OOMScore is what the container's process can have of what it is to have.
func OOMScore(store *base.Store, id string, spec *specs.Spec) *int {
	if spec.Process == nil {
		return nil
	}
	return store.AllowedOOMScore(id, spec.Process.OOMScoreAdj)
}

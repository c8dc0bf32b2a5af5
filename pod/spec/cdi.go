package spec

import (
	"errors"
	"fmt"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"tags.cncf.io/container-device-interface/pkg/cdi"

	"github.com/coracle-project/coracle/pod/errdefs"
)

// InjectCDI puts what the host's CDI specs say of the devices into the container's spec. The
// spec files are read again: few containers have such devices, and plugins write them at any
// time. A device that cannot be found is an error, for without it the container would run
// and do something else.
func (b *Builder) InjectCDI(spec *specs.Spec, names []string) error {
	if len(names) == 0 {
		return nil
	}
	dirs := strings.Join(b.CDISpecDirs, ", ")
	cache, err := cdi.NewCache(cdi.WithSpecDirs(b.CDISpecDirs...), cdi.WithAutoRefresh(false))
	if err != nil {
		return fmt.Errorf("CDI specs in %s: %w", dirs, err)
	}
	unknown, err := cache.InjectDevices(spec, names...)
	if err == nil {
		return nil
	}
	if len(unknown) == 0 {
		return errdefs.Errorf(errdefs.ErrInvalid, "CDI devices %s: %w", strings.Join(names, ", "), err)
	}
	var broken []error
	for path, errs := range cache.GetErrors() {
		broken = append(broken, fmt.Errorf("%s: %w", path, errors.Join(errs...)))
	}
	if len(broken) > 0 {
		return errdefs.Errorf(errdefs.ErrPrecondition, "no CDI device %s in %s, where a spec cannot be read: %w", strings.Join(unknown, ", "),
			dirs,
			errors.Join(broken...))
	}
	return errdefs.Errorf(errdefs.ErrPrecondition, "no CDI device %s in %s", strings.Join(unknown, ", "), dirs)
}

package checkpoint

import (
	"bytes"
	"encoding/json"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/coracle-project/coracle/pod/errdefs"
	"github.com/coracle-project/coracle/pod/podconfig"
)

// Of what is saved, only memory and processes are taken: everything around them is made from the
// new container's own configuration, and a process that has more than this gives is refused. What
// the checkpoint says of its processes can be compared; CRIU's images, which may say otherwise, are
// believed (see restore.go).

// check refuses a container whose configuration describes another process than the saved one, or
// forbids something that the saved one has.
func (s *Saved) Check(c *podconfig.Container, made *specs.Spec) error {
	saved, own := s.spec.Process, made.Process
	switch {
	case len(c.Command)+len(c.Args) > 0 && !slices.Equal(own.Args, saved.Args):
		return s.differs("command %q; the checkpoint of %s is of %q", own.Args, saved.Args)
	case c.WorkingDir != "" && own.Cwd != saved.Cwd:
		return s.differs("working directory %q; the checkpoint of %s has %q", own.Cwd, saved.Cwd)
	case own.User.UID != saved.User.UID || own.User.GID != saved.User.GID:
		return s.differs("user and group %d; the checkpoint of %s is of %d", []uint32{own.User.UID, own.User.GID},
			[]uint32{saved.User.UID, saved.User.GID})
	case !subset(saved.User.AdditionalGids, own.User.AdditionalGids):
		return s.differs("groups %d; the checkpoint of %s has %d", own.User.AdditionalGids, saved.User.AdditionalGids)
	case own.Terminal != saved.Terminal:
		return s.differs("terminal %t; the checkpoint of %s has %t", own.Terminal, saved.Terminal)
	case own.NoNewPrivileges && !saved.NoNewPrivileges:
		return s.differs("no new privileges %t; the checkpoint of %s has %t", own.NoNewPrivileges, saved.NoNewPrivileges)
	case own.ApparmorProfile != saved.ApparmorProfile:
		return s.differs("AppArmor profile %q; the checkpoint of %s has %q", own.ApparmorProfile, saved.ApparmorProfile)
	case own.SelinuxLabel != saved.SelinuxLabel:
		return s.differs("SELinux label %q; the checkpoint of %s has %q", own.SelinuxLabel, saved.SelinuxLabel)
	case made.Linux.Seccomp != nil && !sameSeccomp(made.Linux.Seccomp, s.spec.Linux.Seccomp):
		return errdefs.Errorf(errdefs.ErrInvalid, "the seccomp profile is not that of the checkpoint of %s", s.config.Name)
	// CRIU wants to find the mounts that it saved, and these are some.
	case !sameSet(made.Linux.MaskedPaths, s.spec.Linux.MaskedPaths):
		return s.differs("masked paths %q; the checkpoint of %s has %q", made.Linux.MaskedPaths, s.spec.Linux.MaskedPaths)
	case !sameSet(made.Linux.ReadonlyPaths, s.spec.Linux.ReadonlyPaths):
		return s.differs("read-only paths %q; the checkpoint of %s has %q", made.Linux.ReadonlyPaths, s.spec.Linux.ReadonlyPaths)
	}
	if err := s.checkCapabilities(own.Capabilities); err != nil {
		return err
	}
	for _, kv := range c.Env {
		if !slices.Contains(saved.Env, kv[0]+"="+kv[1]) {
			return errdefs.Errorf(errdefs.ErrInvalid, "variable %s is not what the checkpoint of %s has", kv[0], s.config.Name)
		}
	}
	return nil
}

// differs is the error for what is one way in the configuration and another in the checkpoint.
func (s *Saved) differs(format string, own, saved any) error {
	return errdefs.Errorf(errdefs.ErrInvalid, format, own, s.config.Name, saved)
}

func (s *Saved) checkCapabilities(own *specs.LinuxCapabilities) error {
	saved := s.spec.Process.Capabilities
	if saved == nil {
		return nil
	}
	if own == nil {
		own = &specs.LinuxCapabilities{}
	}
	for _, set := range []struct {
		name       string
		saved, own []string
	}{
		{"bounding", saved.Bounding, own.Bounding},
		{"effective", saved.Effective, own.Effective},
		{"permitted", saved.Permitted, own.Permitted},
		{"inheritable", saved.Inheritable, own.Inheritable},
		{"ambient", saved.Ambient, own.Ambient},
	} {
		if !subset(set.saved, set.own) {
			return s.differs(set.name+" capabilities %q; the checkpoint of %s has %q", set.own, set.saved)
		}
	}
	return nil
}

// apply has a container's spec describe the process that goes on in it.
func (s *Saved) Apply(spec *specs.Spec) {
	spec.Process.Args, spec.Process.Env, spec.Process.Cwd = s.spec.Process.Args, s.spec.Process.Env, s.spec.Process.Cwd
}

// sameSeccomp compares two profiles as they are written: one comes from a file.
func sameSeccomp(a, b *specs.LinuxSeccomp) bool {
	x, xerr := json.Marshal(a)
	y, yerr := json.Marshal(b)
	return xerr == nil && yerr == nil && bytes.Equal(x, y)
}

func subset[T comparable](of, all []T) bool {
	return !slices.ContainsFunc(of, func(v T) bool { return !slices.Contains(all, v) })
}

func sameSet[T comparable](a, b []T) bool { return subset(a, b) && subset(b, a) }

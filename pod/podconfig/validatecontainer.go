package podconfig

import (
	"path"
	"path/filepath"
	"slices"
	"strings"

	"tags.cncf.io/container-device-interface/pkg/parser"

	"github.com/coracle-project/coracle/pod/errdefs"
	"github.com/coracle-project/coracle/pod/ocispec"
)

// Validate checks everything about a container that can be checked without touching
// anything.
func (c *Container) Validate() error {
	if err := checkName("name", c.Name); err != nil {
		return err
	}
	if c.Image == "" {
		return errdefs.Errorf(errdefs.ErrInvalid, "image is missing")
	}
	if c.WorkingDir != "" && !path.IsAbs(c.WorkingDir) {
		return errdefs.Errorf(errdefs.ErrInvalid, "working directory %q is not an absolute path", c.WorkingDir)
	}
	if err := validateLogPath(c.LogPath); err != nil {
		return err
	}
	for _, kv := range c.Env {
		if kv[0] == "" || strings.ContainsAny(kv[0], "=\x00") || strings.ContainsRune(kv[1], 0) {
			return errdefs.Errorf(errdefs.ErrInvalid, "environment variable %q is not valid", kv[0])
		}
	}
	for _, arg := range slices.Concat(c.Command, c.Args) {
		if strings.ContainsRune(arg, 0) {
			return errdefs.Errorf(errdefs.ErrInvalid, "argument %q has a zero byte in it", arg)
		}
	}
	for i := range c.Mounts {
		if err := c.Mounts[i].validate(); err != nil {
			return err
		}
	}
	for i := range c.Devices {
		if err := c.Devices[i].validate(); err != nil {
			return err
		}
	}
	if err := validateCDI(c.CDIDevices); err != nil {
		return err
	}
	if c.StopSignal != "" {
		if _, err := ParseSignal(c.StopSignal); err != nil {
			return err
		}
	}
	if err := c.Resources.Validate(); err != nil {
		return err
	}
	return c.Security.validate()
}

// validateLogPath wants a path that stays below the pod's log directory.
func validateLogPath(p string) error {
	if p != "" && !filepath.IsLocal(p) {
		return errdefs.Errorf(errdefs.ErrInvalid, "log path %q is not a relative path below the pod's log directory", p)
	}
	return nil
}

func (m *Mount) validate() error {
	if !path.IsAbs(m.ContainerPath) || path.Clean(m.ContainerPath) == "/" {
		return errdefs.Errorf(errdefs.ErrInvalid, "mount point %q is not an absolute path below the root", m.ContainerPath)
	}
	switch {
	case m.Image != "":
		if err := m.validateImage(); err != nil {
			return err
		}
	case m.ImageSubPath != "":
		return errdefs.Errorf(errdefs.ErrInvalid, "mount %s has a sub-path of an image, but no image", m.ContainerPath)
	case !filepath.IsAbs(m.HostPath):
		return errdefs.Errorf(errdefs.ErrInvalid, "host path %q of mount %s is not an absolute path", m.HostPath, m.ContainerPath)
	}
	if !slices.Contains([]Propagation{"", PropagationPrivate, PropagationHostToContainer, PropagationBidirectional}, m.Propagation) {
		return errdefs.Errorf(errdefs.ErrInvalid, "propagation %q of mount %s is unknown", m.Propagation, m.ContainerPath)
	}
	if m.RecursiveReadonly && (!m.Readonly || m.Propagation != "" && m.Propagation != PropagationPrivate) {
		return errdefs.Errorf(errdefs.ErrInvalid, "recursive read-only mount %s must be read-only and private", m.ContainerPath)
	}
	for _, o := range m.Options {
		if !slices.Contains(mountOptions, o) {
			return errdefs.Errorf(errdefs.ErrInvalid, "option %q of mount %s is not one of %s", o, m.ContainerPath, strings.Join(mountOptions, ", "))
		}
	}
	return validateIDMaps("mount "+m.ContainerPath, m.Users)
}

// mountOptions are those that say how files may be used, and nothing of what is mounted.
var mountOptions = []string{
	"noexec", "exec", "nodev", "dev", "nosuid", "suid", "noatime", "atime", "nodiratime", "diratime",
	"relatime", "norelatime", "strictatime", "nostrictatime", "nosymfollow", "symfollow",
}

// validateImage checks an image volume, which is read-only whatever the mount says.
func (m *Mount) validateImage() error {
	switch {
	case m.HostPath != "":
		return errdefs.Errorf(errdefs.ErrInvalid, "mount %s has both host path %q and image %q", m.ContainerPath, m.HostPath, m.Image)
	case m.ImageSubPath != "" && !filepath.IsLocal(m.ImageSubPath):
		return errdefs.Errorf(errdefs.ErrInvalid, "sub-path %q of mount %s is not a relative path below the image's root", m.ImageSubPath,
			m.ContainerPath)
	case m.Propagation != "" && m.Propagation != PropagationPrivate:
		return errdefs.Errorf(errdefs.ErrInvalid, "mount %s is of an image, where nothing is ever mounted; propagation %q is not possible",
			m.ContainerPath,
			m.Propagation)
	}
	return nil
}

func (d *Device) validate() error {
	if !filepath.IsAbs(d.HostPath) {
		return errdefs.Errorf(errdefs.ErrInvalid, "device %q is not an absolute path", d.HostPath)
	}
	if d.ContainerPath != "" && !path.IsAbs(d.ContainerPath) {
		return errdefs.Errorf(errdefs.ErrInvalid, "device path %q in the container is not absolute", d.ContainerPath)
	}
	if strings.Trim(d.Permissions, "rwm") != "" {
		return errdefs.Errorf(errdefs.ErrInvalid, "device permissions %q of %s are not of r, w and m", d.Permissions, d.HostPath)
	}
	return nil
}

func (s *Security) validate() error {
	if err := s.Namespaces.validateContainer(); err != nil {
		return err
	}
	for _, name := range slices.Concat(s.AddCapabilities, s.DropCapabilities, s.AddAmbientCapabilities) {
		if _, err := ocispec.CapabilityName(name); err != nil {
			return errdefs.Errorf(errdefs.ErrInvalid, "%w", err)
		}
	}
	for _, p := range slices.Concat(s.MaskedPaths, s.ReadonlyPaths) {
		if !path.IsAbs(p) {
			return errdefs.Errorf(errdefs.ErrInvalid, "masked or read-only path %q is not absolute", p)
		}
	}
	if err := s.Seccomp.validate(); err != nil {
		return err
	}
	u := &s.User
	switch {
	case u.UID != nil && u.Name != "":
		return errdefs.Errorf(errdefs.ErrInvalid, "run as user %d and as %q: only one can be", *u.UID, u.Name)
	case u.GID != nil && u.UID == nil && u.Name == "":
		return errdefs.Errorf(errdefs.ErrInvalid, "run as group %d needs a user too", *u.GID)
	}
	return nil
}

func (n *Namespaces) validateContainer() error {
	if err := n.validateUser(); err != nil {
		return err
	}
	switch n.PID {
	case "", NamespacePod, NamespaceContainer, NamespaceNode:
	case NamespaceTarget:
		if n.TargetID == "" {
			return errdefs.Errorf(errdefs.ErrInvalid, "pid namespace of a target container needs its id")
		}
	default:
		return errdefs.Errorf(errdefs.ErrInvalid, "pid namespace mode %q is unknown", n.PID)
	}
	return nil
}

func (s *Seccomp) validate() error {
	switch s.Type {
	case "", ProfileUnconfined, ProfileRuntimeDefault:
		return nil
	case ProfileLocalhost:
		if !filepath.IsAbs(s.Localhost) {
			return errdefs.Errorf(errdefs.ErrInvalid, "seccomp profile %q is not an absolute path", s.Localhost)
		}
		return nil
	}
	return errdefs.Errorf(errdefs.ErrInvalid, "seccomp profile type %q is unknown", s.Type)
}

// validateCDI checks names of CDI devices: vendor.example/class=name.
func validateCDI(names []string) error {
	for i, name := range names {
		if _, _, _, err := parser.ParseQualifiedName(name); err != nil {
			return errdefs.Errorf(errdefs.ErrInvalid, "CDI device %q is not of the form vendor.example/class=name: %w", name, err)
		}
		if slices.Contains(names[:i], name) {
			return errdefs.Errorf(errdefs.ErrInvalid, "CDI device %q is asked for twice", name)
		}
	}
	return nil
}

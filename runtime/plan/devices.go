package plan

import (
	"fmt"
	"path"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// defaultDevices are config-linux.md#default-devices.
var defaultDevices = []Device{
	{Path: "/dev/null", Major: 1, Minor: 3},
	{Path: "/dev/zero", Major: 1, Minor: 5},
	{Path: "/dev/full", Major: 1, Minor: 7},
	{Path: "/dev/random", Major: 1, Minor: 8},
	{Path: "/dev/urandom", Major: 1, Minor: 9},
	{Path: "/dev/tty", Major: 5, Minor: 0},
}

var deviceLinks = []Symlink{
	{"/proc/self/fd", "/dev/fd"},
	{"/proc/self/fd/0", "/dev/stdin"},
	{"/proc/self/fd/1", "/dev/stdout"},
	{"/proc/self/fd/2", "/dev/stderr"},
	{"pts/ptmx", "/dev/ptmx"},
}

// device makes the device nodes, unless /dev is the host's.
func (b *builder) device() error {
	for _, m := range b.spec.Mounts {
		bind := m.Type == "bind" || slices.Contains(m.Options, "bind") || slices.Contains(m.Options, "rbind")
		if bind && path.Clean("/"+m.Destination) == "/dev" {
			return nil
		}
	}
	var list []Device
	for _, d := range defaultDevices {
		d.Type, d.Mode = unix.S_IFCHR, 0o666
		if !slices.ContainsFunc(b.spec.Linux.Devices, func(o specs.LinuxDevice) bool { return path.Clean(o.Path) == d.Path }) {
			list = append(list, d)
		}
	}
	for i, d := range b.spec.Linux.Devices {
		dev, err := device(d)
		if err != nil {
			return fmt.Errorf("linux.devices[%d]: %w", i, err)
		}
		if path.Clean(d.Path) != "/dev/ptmx" { // that is devpts's
			list = append(list, dev)
		}
	}
	user := b.userns || b.opts.Gather // which is in one, or the host's who may not either
	for _, d := range list {
		if !user || d.Type == unix.S_IFIFO {
			b.add(d)
			continue
		}
		// A user namespace cannot make devices; it gets the host's, checked to be the same.
		fd := b.fd(Open{Name: "device " + d.Path, Tree: &Tree{
			Path: d.Path, Propagation: unix.MS_PRIVATE, Device: &[2]uint32{d.Major, d.Minor},
		}})
		b.add(Attach{Tree: fd, From: d.Path, Target: d.Path, Propagation: unix.MS_PRIVATE})
	}
	for _, l := range deviceLinks {
		b.add(l)
	}
	return nil
}

func device(d specs.LinuxDevice) (Device, error) {
	out := Device{Path: d.Path, Mode: 0o666}
	if d.FileMode != nil {
		out.Mode = uint32(*d.FileMode) & 0o7777
	}
	switch d.Type {
	case "c", "u":
		out.Type = unix.S_IFCHR
	case "b":
		out.Type = unix.S_IFBLK
	case "p":
		out.Type = unix.S_IFIFO
	default:
		return out, fmt.Errorf("type %q is unknown, use c, b, u or p", d.Type)
	}
	if d.Major < 0 || d.Minor < 0 {
		return out, fmt.Errorf("device number %d:%d is negative", d.Major, d.Minor)
	}
	out.Major, out.Minor = uint32(d.Major), uint32(d.Minor)
	if d.UID != nil {
		out.UID = *d.UID
	}
	if d.GID != nil {
		out.GID = *d.GID
	}
	return out, nil
}

package pod

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"github.com/moby/sys/mountinfo"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/pod/errdefs"
	"github.com/coracle-project/coracle/pod/mac"
	"github.com/coracle-project/coracle/pod/ocispec"
	"github.com/coracle-project/coracle/pod/podconfig"
)

// availableCapabilities are those in the daemon's bounding set: it cannot give more.
var availableCapabilities = sync.OnceValue(func() []string {
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return ocispec.DefaultCapabilities() // no /proc: nothing will run anyway
	}
	_, rest, _ := strings.Cut(string(b), "\nCapBnd:\t")
	hex, _, _ := strings.Cut(rest, "\n")
	mask, err := strconv.ParseUint(strings.TrimSpace(hex), 16, 64)
	if err != nil {
		return ocispec.DefaultCapabilities()
	}
	return ocispec.CapabilitiesOf(mask)
})

// resolveMounts finds the host's side of each mount. A path that does not exist becomes
// a directory, as peers do and callers count on.
func (m *Manager) resolveMounts(ms []podconfig.Mount, volumes map[int]volume, files mac.VolumeLabel) ([]ocispec.Mount, error) {
	out := make([]ocispec.Mount, 0, len(ms))
	for i := range ms {
		mount := &ms[i]
		if v, ok := volumes[i]; ok {
			out = append(out, ocispec.Mount{
				Source: v.source, Destination: path.Clean(mount.ContainerPath), Readonly: true, Propagation: "rprivate", Options: mount.Options,
			})
			continue
		}
		src, err := filepath.EvalSymlinks(mount.HostPath)
		if errors.Is(err, fs.ErrNotExist) {
			if err = os.MkdirAll(mount.HostPath, 0o755); err == nil {
				src, err = filepath.EvalSymlinks(mount.HostPath)
			}
		}
		if err != nil {
			return nil, errdefs.Errorf(errdefs.ErrInvalid, "mount %s: %w", mount.ContainerPath, err)
		}
		if err := checkPropagation(src, mount); err != nil {
			return nil, err
		}
		if mount.SELinuxRelabel {
			if err := m.selinux.Relabel(src, files); err != nil {
				return nil, fmt.Errorf("mount %s: %w", mount.ContainerPath, err)
			}
		}
		om := ocispec.Mount{
			Source: src, Destination: path.Clean(mount.ContainerPath),
			Readonly: mount.Readonly, RecursiveReadonly: mount.RecursiveReadonly, Options: mount.Options,
			UIDs: mappings(mount.Users.UIDs), GIDs: mappings(mount.Users.GIDs),
		}
		switch mount.Propagation {
		case podconfig.PropagationHostToContainer, podconfig.PropagationBidirectional:
			om.Propagation = string(mount.Propagation)
		default:
			om.Propagation = "rprivate"
		}
		out = append(out, om)
	}
	return out, nil
}

// mappings are id mappings as OCI has them.
func mappings(maps []podconfig.IDMap) (out []specs.LinuxIDMapping) {
	for _, m := range maps {
		out = append(out, specs.LinuxIDMapping{ContainerID: m.Container, HostID: m.Host, Size: m.Length})
	}
	return out
}

// checkPropagation refuses a propagation that the host's mount cannot give: the kernel
// would take it without a word and nothing would ever propagate.
func checkPropagation(src string, m *podconfig.Mount) error {
	if m.Propagation != podconfig.PropagationBidirectional && m.Propagation != podconfig.PropagationHostToContainer {
		return nil
	}
	infos, err := mountinfo.GetMounts(mountinfo.ParentsFilter(src))
	if err != nil {
		return fmt.Errorf("mount %s: %w", m.ContainerPath, err)
	}
	var at *mountinfo.Info
	for _, info := range infos {
		if at == nil || len(info.Mountpoint) >= len(at.Mountpoint) {
			at = info
		}
	}
	if at == nil {
		return errdefs.Errorf(errdefs.ErrPrecondition, "mount %s: no mount holds %s", m.ContainerPath, src)
	}
	shared := strings.Contains(at.Optional, "shared:")
	slave := strings.Contains(at.Optional, "master:")
	if shared || slave && m.Propagation == podconfig.PropagationHostToContainer {
		return nil
	}
	return errdefs.Errorf(errdefs.ErrPrecondition,
		"mount %s: %s is on the mount %s, which is not shared; make it so with mount --make-rshared %s",
		m.ContainerPath, src, at.Mountpoint, at.Mountpoint)
}

// resolveDevices looks the devices up on the host; a directory stands for all devices
// below it. With all, those of /dev come besides.
func resolveDevices(ds []podconfig.Device, all bool) ([]ocispec.Device, error) {
	var out []ocispec.Device
	if all {
		host, err := devicesBelow("/dev", "/dev", "rwm")
		if err != nil {
			return nil, fmt.Errorf("host devices: %w", err)
		}
		out = host
	}
	for _, d := range ds {
		host, err := filepath.EvalSymlinks(d.HostPath)
		if err != nil {
			return nil, errdefs.Errorf(errdefs.ErrInvalid, "device: %w", err)
		}
		to := d.ContainerPath
		if to == "" {
			to = d.HostPath
		}
		perm := d.Permissions
		if perm == "" {
			perm = "rwm"
		}
		got, err := devicesBelow(host, path.Clean(to), perm)
		if err != nil {
			return nil, errdefs.Errorf(errdefs.ErrInvalid, "device %s: %w", d.HostPath, err)
		}
		if len(got) == 0 {
			return nil, errdefs.Errorf(errdefs.ErrInvalid, "%s is not a device", d.HostPath)
		}
		out = append(out, got...)
	}
	return out, nil
}

// notDevices are what a container's /dev has of its own.
var notDevices = map[string]bool{
	"/dev/pts": true, "/dev/shm": true, "/dev/fd": true, "/dev/mqueue": true,
	"/dev/console": true, "/dev/ptmx": true,
}

// devicesBelow lists the device nodes at or below host, as they are to be at to.
func devicesBelow(host, to, perm string) ([]ocispec.Device, error) {
	var out []ocispec.Device
	err := filepath.WalkDir(host, func(p string, e fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist) && p != host:
			return nil // it went while we looked
		case err != nil:
			return err
		case notDevices[p]:
			if e.IsDir() {
				return fs.SkipDir
			}
			return nil
		case e.Type()&fs.ModeDevice == 0:
			return nil
		}
		var st unix.Stat_t
		if err := unix.Lstat(p, &st); err != nil {
			return nil // as above
		}
		kind := "c"
		if st.Mode&unix.S_IFMT == unix.S_IFBLK {
			kind = "b"
		}
		mode := fs.FileMode(st.Mode & 0o777)
		out = append(out, ocispec.Device{
			Permissions: perm,
			Node: specs.LinuxDevice{
				Path: to + strings.TrimPrefix(p, host), Type: kind,
				Major: int64(unix.Major(uint64(st.Rdev))), Minor: int64(unix.Minor(uint64(st.Rdev))),
				FileMode: &mode, UID: &st.Uid, GID: &st.Gid,
			},
		})
		return nil
	})
	return out, err
}

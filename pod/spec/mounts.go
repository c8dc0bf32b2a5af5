package spec

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/moby/sys/mountinfo"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/coracle-project/coracle/pod/errdefs"
	"github.com/coracle-project/coracle/pod/mac"
	"github.com/coracle-project/coracle/pod/ocispec"
	"github.com/coracle-project/coracle/pod/podconfig"
)

// resolveMounts finds the host's side of each mount. A path that does not exist becomes
// a directory, as peers do and callers count on.
func (b *Builder) resolveMounts(ms []podconfig.Mount, volumes map[int]string, files mac.VolumeLabel) ([]ocispec.Mount, error) {
	out := make([]ocispec.Mount, 0, len(ms))
	for i := range ms {
		mount := &ms[i]
		if source, ok := volumes[i]; ok {
			out = append(out, ocispec.Mount{
				Source: source, Destination: path.Clean(mount.ContainerPath), Readonly: true, Propagation: "rprivate", Options: mount.Options,
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
			if err := b.SELinux.Relabel(src, files); err != nil {
				return nil, fmt.Errorf("mount %s: %w", mount.ContainerPath, err)
			}
		}
		om := ocispec.Mount{
			Source: src, Destination: path.Clean(mount.ContainerPath),
			Readonly: mount.Readonly, RecursiveReadonly: mount.RecursiveReadonly, Options: mount.Options,
			UIDs: Mappings(mount.Users.UIDs), GIDs: Mappings(mount.Users.GIDs),
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

// Mappings are id mappings as OCI has them.
func Mappings(maps []podconfig.IDMap) (out []specs.LinuxIDMapping) {
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

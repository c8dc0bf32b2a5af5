package pod

import (
	"context"
	"fmt"
	"os"
	"path"

	"github.com/coracle-project/coracle/image"
	"github.com/coracle-project/coracle/pod/errdefs"
	"github.com/coracle-project/coracle/pod/mac"
	"github.com/coracle-project/coracle/pod/ocispec"
	"github.com/coracle-project/coracle/pod/podconfig"
	"github.com/coracle-project/coracle/pod/state"
	"github.com/coracle-project/coracle/pod/userdb"
)

// specInput takes all decisions that the container's spec depends on: everything here
// may look at the host, nothing in ocispec does.
func (m *Manager) specInput(ctx context.Context, p *state.PodEntry, e *state.ContainerEntry, img image.Image,
	user userdb.Identity,
	root string, volumes map[int]volume, labels mac.Labels,
) (ocispec.Input, error) {
	pc, c := &p.Get().Config, &e.Get().Config
	sec := &c.Security
	if err := sec.Namespaces.FitsPod(&pc.Namespaces); err != nil {
		return ocispec.Input{}, err
	}
	if sec.Privileged && !pc.Privileged {
		return ocispec.Input{}, errdefs.Errorf(errdefs.ErrInvalid, "a privileged container needs a privileged pod")
	}
	handler, err := m.opts.Handlers.Of(pc)
	if err != nil {
		return ocispec.Input{}, err
	}
	in := ocispec.Input{
		Identity: ocispec.Identity{
			ID: e.ID, Name: c.Name, Image: c.Image,
			PodID: p.ID, PodName: pc.Name, PodNamespace: pc.Namespace, PodUID: pc.UID,
		},
		Root: root, ReadonlyRoot: sec.ReadonlyRootfs,
		Args:     ocispec.Args(c.Command, c.Args, img.Config.Entrypoint, img.Config.Cmd),
		ImageEnv: img.Config.Env, Env: c.Env, WorkingDir: c.WorkingDir, TTY: c.TTY,
		UID: user.UID, GID: user.GID, Groups: user.Groups,
		Privileged: sec.Privileged, NoNewPrivs: sec.NoNewPrivs,
		Capabilities: ocispec.Capabilities{
			Add: sec.AddCapabilities, Drop: sec.DropCapabilities, Ambient: sec.AddAmbientCapabilities,
			Available: availableCapabilities(),
		},
		MaskedPaths: sec.MaskedPaths, ReadonlyPaths: sec.ReadonlyPaths,
		Resources:   c.Resources.On(podconfig.LimitsOfHost()),
		Rlimits:     m.opts.Rlimits,
		CgroupsPath: m.opts.cgroups().SpecPath(pc, e.ID),
	}
	if len(in.Args) == 0 {
		return in, errdefs.Errorf(errdefs.ErrInvalid, "neither the container nor image %s says what to run", c.Image)
	}
	if in.WorkingDir == "" {
		in.WorkingDir = img.Config.WorkingDir
	}
	if in.WorkingDir == "" {
		in.WorkingDir = "/"
	}
	if !path.IsAbs(in.WorkingDir) {
		in.WorkingDir = "/" + in.WorkingDir
	}
	if in.Hostname, err = pc.UTSName(); err != nil {
		return in, err
	}
	if handler.Sandboxed() {
		if _, err := m.sharedPID(ctx, p); err != nil {
			return in, err
		}
	}
	if in.Namespaces, err = m.containerNamespaces(ctx, p, c); err != nil {
		return in, err
	}
	in.Files = m.containerFiles(p.ID, pc)
	in.ProcessLabel, in.MountLabel = labels.Process, labels.Mount
	if in.Mounts, err = m.resolveMounts(c.Mounts, volumes, mac.VolumeLabelOf(p.Get().Labels, labels, sec)); err != nil {
		return in, err
	}
	in.AllDevices = sec.Privileged && !handler.PrivilegedWithoutHostDevices
	if in.Devices, err = resolveDevices(c.Devices, in.AllDevices); err != nil {
		return in, err
	}
	in.Annotations = handler.PassedAnnotations(pc.Annotations, c.Annotations)
	if in.AppArmor, err = m.apparmor.Profile(ctx, sec.AppArmor, sec.Privileged); err != nil {
		return in, err
	}
	in.Seccomp, err = m.seccompProfile(&sec.Seccomp)
	return in, err
}

// containerFiles are the pod's files that a container sees.
func (m *Manager) containerFiles(podID string, c *podconfig.Pod) ocispec.Files {
	f := ocispec.Files{
		ResolvConf: m.dirs.PodFile(podID, "resolv.conf"),
		Hosts:      m.dirs.PodFile(podID, "hosts"),
		Hostname:   m.dirs.PodFile(podID, "hostname"),
		Shm:        m.dirs.PodFile(podID, "shm"),
	}
	if c.HostIPC() {
		f.Shm = "/dev/shm"
	}
	return f
}

// containerNamespaces are those of the pod, and the PID namespace that the container chooses.
func (m *Manager) containerNamespaces(ctx context.Context, p *state.PodEntry, c *podconfig.Container) (ocispec.Namespaces, error) {
	rec := p.Get()
	n := ocispec.Namespaces{
		Net: rec.Namespaces.Net, IPC: rec.Namespaces.IPC, UTS: rec.Namespaces.UTS,
		User: rec.Namespaces.User, UIDs: mappings(rec.Config.Namespaces.Users.UIDs), GIDs: mappings(rec.Config.Namespaces.Users.GIDs),
		HostNet: rec.Config.HostNetwork(), HostIPC: rec.Config.HostIPC(),
	}
	switch mode := c.Security.Namespaces.PID; mode {
	case podconfig.NamespaceNode:
		n.HostPID = true
	case podconfig.NamespacePod:
		if rec.Config.Namespaces.PID == podconfig.NamespaceNode {
			n.HostPID = true
			break
		}
		pid, err := m.sharedPID(ctx, p)
		if err != nil {
			return n, err
		}
		n.PID = fmt.Sprintf("/proc/%d/ns/pid", pid)
	case podconfig.NamespaceTarget:
		t, err := m.containers.Find(c.Security.Namespaces.TargetID)
		if err != nil {
			return n, fmt.Errorf("target container: %w", err)
		}
		tr := t.Get()
		if tr.PodID != p.ID {
			return n, errdefs.Errorf(errdefs.ErrInvalid, "target container %s is in another pod", t.ID)
		}
		if tr.Phase != state.ContainerRunning {
			return n, errdefs.Errorf(errdefs.ErrPrecondition, "target container %s is not running", t.ID)
		}
		n.PID = fmt.Sprintf("/proc/%d/ns/pid", tr.Pid)
	}
	return n, nil
}

// maxSeccompProfile bounds a profile file.
const maxSeccompProfile = 1 << 20

func (m *Manager) seccompProfile(s *podconfig.Seccomp) (ocispec.Seccomp, error) {
	kind := s.Type
	if kind == "" {
		kind = m.opts.UnsetSeccomp
	}
	switch kind {
	case podconfig.ProfileRuntimeDefault:
		return ocispec.Seccomp{Default: true}, nil
	case podconfig.ProfileLocalhost:
		st, err := os.Stat(s.Localhost)
		if err != nil {
			return ocispec.Seccomp{}, errdefs.Errorf(errdefs.ErrInvalid, "seccomp profile: %w", err)
		}
		if !st.Mode().IsRegular() || st.Size() > maxSeccompProfile {
			return ocispec.Seccomp{}, errdefs.Errorf(errdefs.ErrInvalid, "seccomp profile %s is not a file of at most %d bytes", s.Localhost,
				maxSeccompProfile)
		}
		b, err := os.ReadFile(s.Localhost)
		if err != nil {
			return ocispec.Seccomp{}, errdefs.Errorf(errdefs.ErrInvalid, "seccomp profile: %w", err)
		}
		return ocispec.Seccomp{JSON: string(b)}, nil
	}
	return ocispec.Seccomp{}, nil
}

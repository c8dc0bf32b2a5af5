// Package spec decides what the OCI specification of a container says: it looks at the host and at
// the pod, and has package ocispec, which does neither, compute the specification.
package spec

import (
	"context"
	"encoding/json"
	"fmt"
	"path"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/coracle-project/coracle/image"
	"github.com/coracle-project/coracle/pod/errdefs"
	"github.com/coracle-project/coracle/pod/mac"
	"github.com/coracle-project/coracle/pod/ocispec"
	"github.com/coracle-project/coracle/pod/podconfig"
	"github.com/coracle-project/coracle/pod/state"
	"github.com/coracle-project/coracle/pod/userdb"
)

// Builder builds specifications of containers.
type Builder struct {
	Handlers     podconfig.Handlers
	Cgroups      podconfig.Cgroups
	Rlimits      []specs.POSIXRlimit
	UnsetSeccomp podconfig.ProfileType
	CDISpecDirs  []string

	Dirs       state.Layout
	Containers *state.ContainerTable
	SELinux    *mac.SELinux
	AppArmor   *mac.AppArmor
	// SharedPID returns a process in the PID namespace that the pod's containers share, which it
	// makes for the first of them.
	SharedPID func(ctx context.Context, p *state.PodEntry) (pid int, err error)
}

// Container is a container whose root is mounted.
type Container struct {
	Pod     *state.PodEntry
	Entry   *state.ContainerEntry
	Image   *image.Image // that it is made from
	User    userdb.Identity
	Root    string
	Volumes map[int]string // where image volumes are mounted, by number of the mount
	Labels  mac.Labels
}

// Build computes the specification of a container.
func (b *Builder) Build(ctx context.Context, c *Container) (*specs.Spec, error) {
	in, err := b.input(ctx, c)
	if err != nil {
		return nil, err
	}
	spec, err := ocispec.Container(in)
	if err != nil {
		return nil, errdefs.Errorf(errdefs.ErrInvalid, "%w", err)
	}
	return spec, nil
}

// input takes all decisions that the container's spec depends on: everything here
// may look at the host, nothing in ocispec does.
func (b *Builder) input(ctx context.Context, r *Container) (ocispec.Input, error) {
	p, e, img, user, labels := r.Pod, r.Entry, r.Image, &r.User, r.Labels
	pc, c := &p.Get().Config, &e.Get().Config
	sec := &c.Security
	if err := sec.Namespaces.FitsPod(&pc.Namespaces); err != nil {
		return ocispec.Input{}, err
	}
	if sec.Privileged && !pc.Privileged {
		return ocispec.Input{}, errdefs.Errorf(errdefs.ErrInvalid, "a privileged container needs a privileged pod")
	}
	handler, err := b.Handlers.Of(pc)
	if err != nil {
		return ocispec.Input{}, err
	}
	in := ocispec.Input{
		Identity: ocispec.Identity{
			ID: e.ID, Name: c.Name, Image: c.Image,
			PodID: p.ID, PodName: pc.Name, PodNamespace: pc.Namespace, PodUID: pc.UID,
		},
		Root: r.Root, ReadonlyRoot: sec.ReadonlyRootfs,
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
		Rlimits:     b.Rlimits,
		CgroupsPath: b.Cgroups.SpecPath(pc, e.ID),
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
		if _, err := b.SharedPID(ctx, p); err != nil {
			return in, err
		}
	}
	if in.Namespaces, err = b.namespaces(ctx, p, c); err != nil {
		return in, err
	}
	in.Files = PodFiles(b.Dirs, p.ID, pc)
	in.ProcessLabel, in.MountLabel = labels.Process, labels.Mount
	if in.Mounts, err = b.resolveMounts(c.Mounts, r.Volumes, mac.VolumeLabelOf(p.Get().Labels, labels, sec)); err != nil {
		return in, err
	}
	in.AllDevices = sec.Privileged && !handler.PrivilegedWithoutHostDevices
	if in.Devices, err = resolveDevices(c.Devices, in.AllDevices); err != nil {
		return in, err
	}
	in.Annotations = handler.PassedAnnotations(pc.Annotations, c.Annotations)
	if in.AppArmor, err = b.AppArmor.Profile(ctx, sec.AppArmor, sec.Privileged); err != nil {
		return in, err
	}
	in.Seccomp, err = Seccomp(&sec.Seccomp, b.UnsetSeccomp)
	return in, err
}

// PodFiles are the pod's files that a container sees.
func PodFiles(dirs state.Layout, podID string, c *podconfig.Pod) ocispec.Files {
	f := ocispec.Files{
		ResolvConf: dirs.PodFile(podID, "resolv.conf"),
		Hosts:      dirs.PodFile(podID, "hosts"),
		Hostname:   dirs.PodFile(podID, "hostname"),
		Shm:        dirs.PodFile(podID, "shm"),
	}
	if c.HostIPC() {
		f.Shm = "/dev/shm"
	}
	return f
}

// namespaces are those of the pod, and the PID namespace that the container chooses.
func (b *Builder) namespaces(ctx context.Context, p *state.PodEntry, c *podconfig.Container) (ocispec.Namespaces, error) {
	rec := p.Get()
	n := ocispec.Namespaces{
		Net: rec.Namespaces.Net, IPC: rec.Namespaces.IPC, UTS: rec.Namespaces.UTS,
		User: rec.Namespaces.User, UIDs: Mappings(rec.Config.Namespaces.Users.UIDs), GIDs: Mappings(rec.Config.Namespaces.Users.GIDs),
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
		pid, err := b.SharedPID(ctx, p)
		if err != nil {
			return n, err
		}
		n.PID = fmt.Sprintf("/proc/%d/ns/pid", pid)
	case podconfig.NamespaceTarget:
		t, err := b.Containers.Find(c.Security.Namespaces.TargetID)
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

// RewriteResources changes limits in the bundle, where a start finds them: those that change has.
// The others stay, what plugins have set among them.
func RewriteResources(bundle string, change *specs.LinuxResources) error {
	spec, err := ocispec.Read(bundle)
	if err != nil {
		return err
	}
	if spec.Linux.Resources == nil {
		spec.Linux.Resources = &specs.LinuxResources{}
	}
	if err := mergeResources(spec.Linux.Resources, change); err != nil {
		return err
	}
	return ocispec.Write(bundle, spec)
}

// mergeResources sets in r what change has.
func mergeResources(r, change *specs.LinuxResources) error {
	pages := r.HugepageLimits
	for _, limit := range change.HugepageLimits {
		same := func(l specs.LinuxHugepageLimit) bool { return l.Pagesize == limit.Pagesize }
		pages = append(slices.DeleteFunc(pages, same), limit)
	}
	// A field that is absent in JSON leaves the one that there is, at any depth.
	b, err := json.Marshal(change)
	if err != nil {
		return err
	}
	r.HugepageLimits = nil
	if err := json.Unmarshal(b, r); err != nil {
		return err
	}
	r.HugepageLimits = pages
	return nil
}

package plan

import (
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/runtime/validate"
)

// rootPropagation is linux.rootfsPropagation as a flag of mount(2).
func (b *builder) rootPropagation() (uintptr, error) {
	p := b.spec.Linux.RootfsPropagation
	if p == "" {
		return unix.MS_SLAVE | unix.MS_REC, nil
	}
	o := mountOptions[p]
	if o.propagation == 0 {
		return 0,
			fmt.Errorf("linux.rootfsPropagation %q is unknown, use private, slave, shared or unbindable, or one of them with an r before it", p)
	}
	return o.propagation, nil
}

func (b *builder) mounts() error {
	prop, err := b.rootPropagation()
	if err != nil {
		return err
	}
	rootProp := prop
	if prop&(unix.MS_SHARED|unix.MS_UNBINDABLE) != 0 {
		rootProp = unix.MS_PRIVATE | unix.MS_REC // until all is mounted; see Finish
	}
	if b.hooked() {
		host := b.fd(Open{Name: "host", Tree: &Tree{Path: "/", Recursive: true, Propagation: unix.MS_SLAVE | unix.MS_REC}})
		b.add(HostView{Tree: host, Hide: b.opts.Hide, Root: b.opts.Rootfs})
	}
	root := b.fd(Open{Name: "root file system", Tree: &Tree{Path: b.opts.Rootfs, Recursive: true, Propagation: rootProp}})
	b.add(Enter{root, rootProp})
	for i, m := range b.spec.Mounts {
		if err := b.mount(i, m); err != nil {
			return fmt.Errorf("mounts[%d]: %w", i, err)
		}
	}
	return nil
}

func (b *builder) mount(i int, m specs.Mount) error {
	o := parseOptions(m.Options)
	target := b.destination(m)
	if strings.HasPrefix(target, "/proc/") && !validate.MayMountInProc(target) {
		return fmt.Errorf("%q cannot be mounted because it is inside /proc", m.Destination)
	}
	if m.Type == "bind" || o.flags&unix.MS_BIND != 0 {
		return b.bind(i, m, o, target)
	}
	if target == "/proc" && m.Type != "proc" {
		return fmt.Errorf("%q cannot be mounted because it is not of type proc", m.Destination)
	}
	if len(m.UIDMappings)+len(m.GIDMappings) > 0 || o.idmap {
		return fmt.Errorf("%q: only bind mounts can have id mappings", m.Destination)
	}
	o = parseOptions(flat(m.Options)) // nothing is mounted below a new file system
	if m.Type == "cgroup" {
		return b.cgroupMount(target, o)
	}
	if m.Type == "" {
		return fmt.Errorf("%q has no type", m.Destination)
	}
	if b.ofHost(m) {
		return b.overlay(i, m, o, target)
	}
	op := Mount{
		Target: target, Type: m.Type, Source: m.Source, Flags: o.flags, Data: strings.Join(o.data, ","),
		Propagation: o.propagation, NoLink: m.Type == "proc" || m.Type == "sysfs",
	}
	if o.copyUp && m.Type != "tmpfs" {
		return fmt.Errorf("%q: option tmpcopyup is for mounts of type tmpfs", m.Destination)
	}
	switch label := b.spec.Linux.MountLabel; m.Type {
	case "proc", "sysfs":
	case "mqueue":
		op.Label = label
	default:
		op.Data = join(op.Data, contextOption(label))
	}
	if m.Type == "tmpfs" {
		// Where the specification is silent, as runc does it.
		op.KeepMode = !slices.ContainsFunc(o.data, func(d string) bool { return strings.HasPrefix(d, "mode=") })
		op.CopyUp = o.copyUp
	}
	if m.Type == "tmpfs" && o.flags&unix.MS_RDONLY != 0 {
		op.ReadonlyLater = true
		op.Flags &^= unix.MS_RDONLY
	}
	b.add(op)
	return nil
}

func (b *builder) bind(i int, m specs.Mount, o options, target string) error {
	src := m.Source
	if !filepath.IsAbs(src) {
		src = filepath.Join(b.opts.Bundle, src)
	}
	if inside, ok := b.fromEarlier(i, src); ok {
		return b.rebind(m, o, inside, target)
	}
	dir, err := b.opts.IsDir(src)
	if err != nil {
		return err
	}
	prop := o.propagation
	if prop == 0 {
		if prop, err = b.volumePropagation(); err != nil {
			return err
		}
	}
	tree := &Tree{Path: src, Recursive: recursive(m, o), Propagation: prop, IDMapAll: o.idmapAll}
	tree.Proc = target == "/proc"
	tree.Set, tree.Clear = withTimes(o.set, o.clear)
	tree.SetAll, tree.ClearAll = withTimes(o.setAll, o.clearAll)
	switch {
	case len(m.UIDMappings)+len(m.GIDMappings) > 0:
		tree.IDMap = mappings(m.UIDMappings, m.GIDMappings)
	case o.idmap:
		if _, joined := b.namespace(specs.UserNamespace); joined != "" {
			tree.IDMapBy = joined
		} else {
			tree.IDMap = mappings(b.spec.Linux.UIDMappings, b.spec.Linux.GIDMappings)
		}
	}
	fd := b.fd(Open{Name: fmt.Sprintf("mounts[%d]", i), Tree: tree})
	b.add(Attach{Tree: fd, From: m.Source, Target: target, Dir: dir, Flags: o.flags &^ bindFlags, Propagation: prop})
	return nil
}

// destination is where a mount goes to. As with runc, it may begin with the path of the root file
// system.
func (b *builder) destination(m specs.Mount) string {
	at := path.Clean("/" + m.Destination)
	if inside, ok := strings.CutPrefix(at, filepath.Clean(b.opts.Rootfs)+"/"); ok {
		return "/" + inside
	}
	return at
}

// bindFlags say that a mount is one, not how.
const bindFlags = unix.MS_BIND | unix.MS_REC | unix.MS_REMOUNT

// recursive says whether a bind mount is of all mounts below, too.
func recursive(m specs.Mount, o options) bool {
	return m.Type == "bind" && !slices.Contains(m.Options, "bind") || o.flags&unix.MS_REC != 0
}

// volumePropagation is that of a bind mount whose options do not say: as if it were made in a
// copy of the host's mounts that has the root's.
func (b *builder) volumePropagation() (uintptr, error) {
	prop, err := b.rootPropagation()
	switch {
	case prop&unix.MS_SHARED != 0:
		return 0, err
	case prop&unix.MS_UNBINDABLE != 0:
		return unix.MS_PRIVATE | unix.MS_REC, err
	}
	return prop | unix.MS_REC, err
}

// cgroupMount shows the cgroups, config-linux.md#default-filesystems: with a cgroup namespace
// through mounts of its own, else by binding the container's own. A namespace's mount of a
// hierarchy of version 1 shows the cgroup that the process is in, so the container's own is bound
// there, too: to mount it, the kernel walks all cgroups of the hierarchy
// (cgroup_lock_and_drain_offline), which takes a millisecond among 1,000 pods.
func (b *builder) cgroupMount(target string, o options) error {
	namespaced, _ := b.namespace(specs.CgroupNamespace)
	flags := o.flags &^ unix.MS_RELATIME
	cg := b.opts.Cgroup
	if cg.Unified {
		if namespaced {
			b.add(Mount{Target: target, Type: "cgroup2", Source: "cgroup", Flags: o.flags, Data: strings.Join(o.data, ",")})
			return nil
		}
		return b.cgroupBind(cg.Own, target, o)
	}
	const safe = unix.MS_NOSUID | unix.MS_NOEXEC | unix.MS_NODEV
	b.add(Mount{
		Target: target, Type: "tmpfs", Source: "tmpfs", Flags: safe, Data: join("mode=755", contextOption(b.spec.Linux.MountLabel)),
		ReadonlyLater: o.flags&unix.MS_RDONLY != 0,
	})
	for _, h := range cg.Hierarchies {
		at := path.Join(target, h.Name)
		if namespaced && !(h.Own && !cg.Wait) {
			kind := "cgroup"
			if h.Options == "" {
				kind = "cgroup2"
			}
			b.add(Mount{Target: at, Type: kind, Source: "cgroup", Flags: flags, Data: h.Options})
		} else if err := b.cgroupBind(h.Path, at, o); err != nil {
			return err
		}
		for _, l := range h.Links {
			b.add(Symlink{To: h.Name, Path: path.Join(target, l)})
		}
	}
	return nil
}

func (b *builder) cgroupBind(from, target string, o options) error {
	if from == "" {
		return unsupported("a cgroup mount without a cgroup")
	}
	if b.opts.Cgroup.Wait {
		// What is bound is opened before the process is there, with which systemd makes the cgroup.
		return unsupported("a cgroup mount of a cgroup that systemd makes")
	}
	tree := &Tree{Path: from, Recursive: true, Propagation: unix.MS_PRIVATE | unix.MS_REC}
	tree.Set, tree.Clear = withTimes(o.set, o.clear)
	fd := b.fd(Open{Name: "cgroup mount " + target, Tree: tree})
	b.add(Attach{
		Tree: fd, From: from, Target: target, Dir: true, Flags: o.flags &^ (unix.MS_BIND | unix.MS_REC),
		Propagation: tree.Propagation,
	})
	return nil
}

func (b *builder) paths() error {
	for _, p := range b.spec.Linux.ReadonlyPaths {
		b.add(Readonly{p, b.flagsAt(p)})
	}
	for i, p := range b.spec.Linux.MaskedPaths {
		if slices.Contains(b.spec.Linux.MaskedPaths[:i], p) {
			continue
		}
		b.add(Mask{p, b.spec.Linux.MountLabel})
	}
	return nil
}

// flagsAt are the flags of the configured mount that a path is in.
func (b *builder) flagsAt(p string) uintptr {
	const none = unix.MS_BIND | unix.MS_REC | unix.MS_REMOUNT | unix.MS_SILENT
	var (
		longest = -1
		flags   uintptr
	)
	p = path.Clean(p) + "/"
	for _, m := range b.spec.Mounts {
		at := strings.TrimSuffix(path.Clean("/"+m.Destination), "/") + "/"
		if strings.HasPrefix(p, at) && len(at) >= longest {
			longest, flags = len(at), parseOptions(m.Options).flags&^none
		}
	}
	return flags
}

func (b *builder) finishMounts() error {
	if b.spec.Process != nil && b.spec.Process.Cwd != "" {
		b.add(MakeDir{b.spec.Process.Cwd})
	}
	if b.spec.Process != nil && b.spec.Process.Terminal {
		b.add(MakeFile{"/dev/console"}) // while that can be done
	}
	b.add(Finish{b.spec.Root.Readonly, b.opts.RootFlags})
	return nil
}

package plan

import (
	"path"
	"path/filepath"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/runtime/validate"
)

// Rebind puts a part of the container's own tree at another place in it: what an earlier mount
// has brought, and the host never sees.
type Rebind struct {
	// Tree is what is bound; its path is one of the container's.
	Tree   *Tree  `json:"tree"`
	Target string `json:"target"`
	// Flags are those of Attach.
	Flags uintptr `json:"flags,omitempty"`
}

func (o Rebind) String() string {
	return Attach{From: o.Tree.Path + " of the container", Target: o.Target, Flags: o.Flags}.String()
}

func (o Rebind) lower(a *asm) {
	from, file, done := a.newSlot(), &label{}, &label{}
	a.find(from, o.Tree.Path, 0, nil)
	clone := unix.OPEN_TREE_CLONE | unix.OPEN_TREE_CLOEXEC | unix.AT_EMPTY_PATH
	if o.Tree.Recursive {
		clone |= unix.AT_RECURSIVE
	}
	tree := a.result(unix.SYS_OPEN_TREE, from, "", clone)
	if a.features.MountSetattr {
		a.setAttributes(tree, o.Tree)
	}
	put := func(dir bool) {
		t := a.findOrMake(o.Target, dir)
		if !validate.MayMountInProc(path.Clean(o.Target)) {
			a.notInProc(t)
		}
		a.moveTo(tree, t)
	}
	a.find(from, o.Tree.Path, unix.O_DIRECTORY, file, unix.ENOTDIR)
	put(true)
	a.call(opIfEq, 0, 0).then(done)
	a.bind(file)
	put(false)
	a.bind(done)
	if a.features.MountSetattr {
		return
	}
	if o.Flags&^unix.MS_REC != 0 {
		a.change(tree, o.Flags|unix.MS_BIND|unix.MS_REMOUNT)
	}
	if o.Tree.Propagation != 0 {
		a.change(tree, o.Tree.Propagation)
	}
}

// fromEarlier is the path in the container of a bind mount's source, if an earlier mount covers it:
// for runc, which mounts in order on the host's paths, the source is then what that has brought.
func (b *builder) fromEarlier(i int, source string) (string, bool) {
	inside, ok := strings.CutPrefix(filepath.Clean(source), filepath.Clean(b.opts.Rootfs)+"/")
	if !ok {
		return "", false
	}
	inside = "/" + inside
	for _, m := range b.spec.Mounts[:i] {
		if at := b.destination(m); at != "/" && strings.HasPrefix(inside+"/", at+"/") {
			return inside, true
		}
	}
	return "", false
}

// rebind is bind for such a source.
func (b *builder) rebind(m specs.Mount, o options, inside, target string) error {
	if len(m.UIDMappings)+len(m.GIDMappings) > 0 || o.idmap {
		return unsupported("an id-mapped mount of what another mount has brought (%s)", inside)
	}
	prop := o.propagation
	if prop == 0 {
		var err error
		if prop, err = b.volumePropagation(); err != nil {
			return err
		}
	}
	tree := &Tree{Path: inside, Recursive: recursive(m, o), Propagation: prop}
	tree.Set, tree.Clear = withTimes(o.set, o.clear)
	tree.SetAll, tree.ClearAll = withTimes(o.setAll, o.clearAll)
	if !b.opts.Features.MountSetattr && tree.SetAll|tree.ClearAll != 0 {
		return unsupported("recursive options of a mount of what another mount has brought")
	}
	b.add(Rebind{tree, target, o.flags &^ bindFlags})
	return nil
}

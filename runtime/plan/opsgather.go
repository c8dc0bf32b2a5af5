package plan

import (
	"fmt"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// Take makes a copy of a part of the host's mounts, as Tree.Open does for a maker who may. Who may
// not is in a user namespace, or about to make one: there the process itself may, while it still
// sees the host's mounts.
type Take struct {
	Into Fd    `json:"into"`
	Tree *Tree `json:"tree"`
}

func (o Take) String() string { return "take " + o.Tree.Path + " of the host" }

func (o Take) explain(errno unix.Errno) error {
	switch {
	case errno == unix.ENODEV && o.Tree.Device != nil:
		return fmt.Errorf("%s is not device %d:%d", o.Tree.Path, o.Tree.Device[0], o.Tree.Device[1])
	case errno == unix.EPERM && o.Tree.Proc:
		return fmt.Errorf("%s cannot be mounted on /proc because it is not of type proc", o.Tree.Path)
	case errno == unix.EINVAL && !o.Tree.Recursive:
		return fmt.Errorf("%s: %w: if something is mounted below it, use option rbind", o, errno)
	}
	return nil
}

func (o Take) lower(a *asm) {
	t, fd := o.Tree, slot(o.Into)
	flags := unix.OPEN_TREE_CLONE | unix.OPEN_TREE_CLOEXEC
	if t.Recursive {
		flags |= unix.AT_RECURSIVE
	}
	a.call(unix.SYS_OPEN_TREE, unix.AT_FDCWD, t.Path, flags).to(fd)
	if t.Device != nil {
		a.mustBeDevice(fd, *t.Device)
	}
	if t.Proc {
		a.mustBeProc(fd)
	}
	if a.features.MountSetattr { // else Attach does it
		a.setAttributes(fd, t)
	}
}

func (a *asm) setAttributes(fd slot, t *Tree) {
	for _, step := range t.attributes() {
		flags := unix.AT_EMPTY_PATH
		if step.all {
			flags |= unix.AT_RECURSIVE
		}
		a.call(unix.SYS_MOUNT_SETATTR, fd, "", flags, a.u64s(uint64(step.set), uint64(step.clear), uint64(step.propagation&^unix.MS_REC), 0), 32)
	}
}

// mustBeDevice fails with ENODEV if a descriptor is not of this device.
func (a *asm) mustBeDevice(fd slot, number [2]uint32) {
	const major, minor, size = 128, 132, 256 // in struct statx
	st, maybe, is, other := a.bytes(make([]byte, size), 8), &label{}, &label{}, &label{}
	a.call(unix.SYS_STATX, fd, "", unix.AT_EMPTY_PATH, unix.STATX_TYPE, st)
	a.call(opIfMem32Eq, st+major, number[0]).then(maybe)
	a.call(opIfEq, 0, 0).then(other)
	a.bind(maybe)
	a.call(opIfMem32Eq, st+minor, number[1]).then(is)
	a.bind(other)
	a.call(opFail, int(unix.ENODEV))
	a.bind(is)
}

// mustBeProc fails with EPERM if a descriptor is not of a file system of type proc.
func (a *asm) mustBeProc(fd slot) {
	const size = 120 // of struct statfs
	buf, is := a.bytes(make([]byte, size), 8), &label{}
	a.call(unix.SYS_FSTATFS, fd, buf)
	a.call(opIfMem32Eq, buf, uint32(unix.PROC_SUPER_MAGIC)).then(is)
	a.call(opFail, int(unix.EPERM))
	a.bind(is)
}

// Settle makes the surroundings that a starter of root's has made for all its processes, and
// leaves the host's mounts. It comes after all Takes.
type Settle struct {
	Null Fd `json:"null"`
	// NoPivot is that of Zygote.
	NoPivot bool `json:"noPivot,omitempty"`
	// Hide keeps this process's memory and descriptors from others that may see it: those of a pid
	// namespace that is not its own. The maker, who is no more privileged than they are, cannot
	// look at them either.
	Hide bool `json:"hide,omitempty"`
}

func (Settle) String() string { return "leave the host's mounts" }

func (o Settle) lower(a *asm) {
	dumpable := 1
	if o.Hide {
		dumpable = 0
	}
	a.call(unix.SYS_PRCTL, unix.PR_SET_DUMPABLE, dumpable, 0, 0, 0)
	// The host's own, for a user namespace may not mount new ones if it sees none that is whole.
	clone := unix.OPEN_TREE_CLONE | unix.OPEN_TREE_CLOEXEC | unix.AT_RECURSIVE
	proc := a.result(unix.SYS_OPEN_TREE, unix.AT_FDCWD, "/proc", clone)
	sys, none := a.newSlot(), &label{}
	a.call(opSet, 0).to(sys)
	a.call(unix.SYS_OPEN_TREE, unix.AT_FDCWD, "/sys", clone).to(sys).forgiving(nil, unix.ENOENT)
	a.surroundings(slot(o.Null), o.NoPivot, func() {
		a.call(unix.SYS_MOVE_MOUNT, proc, "", unix.AT_FDCWD, dirProc, unix.MOVE_MOUNT_F_EMPTY_PATH)
		a.call(opIfEq, sys, 0).then(none)
		a.call(unix.SYS_MOVE_MOUNT, sys, "", unix.AT_FDCWD, dirSys, unix.MOVE_MOUNT_F_EMPTY_PATH)
		a.bind(none)
	})
}

// Show lets the maker look at a process that has changed its user, where Settle has not hidden it.
type Show struct{}

func (Show) String() string { return "let the maker look at the process" }

func (Show) lower(a *asm) { a.call(unix.SYS_PRCTL, unix.PR_SET_DUMPABLE, 1, 0, 0, 0) }

func (b *builder) show() {
	if b.opts.Gather && b.isNew(specs.PIDNamespace) {
		b.add(Show{})
	}
}

// gather marks the place where the process takes what it needs of the host.
func (b *builder) gather() {
	if b.opts.Gather {
		b.gatherAt = len(b.plan.Ops)
	}
}

// gathered puts what was asked for in the meantime in that place.
func (b *builder) gathered() error {
	if !b.opts.Gather {
		return nil
	}
	null := b.fd(Open{Name: "null", Tree: nullDevice()})
	var ops []Op
	for i, o := range b.plan.Opens {
		switch {
		case o.Tree == nil:
			continue
		case o.Tree.IDMap != nil || o.Tree.IDMapBy != "":
			return fmt.Errorf("%s: %s: only root of the host can map the owners of files; remove the mapping", o.Name, o.Tree.Path)
		case !b.opts.Features.MountSetattr && o.Tree.SetAll|o.Tree.ClearAll != 0:
			return fmt.Errorf("%s: recursive mount options for %s need Linux 5.12", o.Name, o.Tree.Path)
		}
		ops = append(ops, Take{Fd(i), o.Tree})
	}
	ops = append(ops, Settle{null, b.opts.NoPivot, !b.isNew(specs.PIDNamespace)})
	b.plan.Ops = slices.Insert(b.plan.Ops, b.gatherAt, ops...)
	return nil
}

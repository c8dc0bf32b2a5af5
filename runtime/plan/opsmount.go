package plan

import (
	"fmt"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/runtime/validate"
)

// HostView makes a copy of the host's mounts the root directory until Leave, and Enter attaches
// the container's root at its path there: hooks may look for it. The starter's own root is
// hidden upon a directory of the host's that no one else looks into.
type HostView struct {
	Tree Fd     `json:"tree"`
	Hide string `json:"hide"`
	// Root is where Enter attaches the container's root.
	Root string `json:"root"`
}

func (o HostView) String() string { return "show the host's mounts to hooks" }

func (o HostView) lower(a *asm) {
	a.keepOld()
	a.host, a.rootfs = slot(o.Tree), o.Root
	a.call(unix.SYS_MOVE_MOUNT, a.host, "", unix.AT_FDCWD, "/"+dirRoot, unix.MOVE_MOUNT_F_EMPTY_PATH)
	if !a.features.MountSetattr {
		a.change(a.host, unix.MS_SLAVE|unix.MS_REC)
	}
	hide := a.newSlot()
	a.call(unix.SYS_OPENAT2, a.host, o.Hide, a.how(unix.O_PATH|unix.O_DIRECTORY, 0), 24).to(hide)
	a.call(unix.SYS_FCHDIR, hide)
	a.call(unix.SYS_PIVOT_ROOT, "/"+dirRoot, ".")
}

// Enter attaches the tree that is to be the root directory. All paths are looked up from its
// descriptor. It does not become the root before Leave: pivot_root(2) would leave the starter's
// root upon it for as long, and ".." in a link of the image would lead there.
type Enter struct {
	Root Fd `json:"root"`
	// Propagation is a flag of mount(2) for the tree where mount_setattr(2) is missing.
	Propagation uintptr `json:"propagation,omitempty"`
}

func (o Enter) String() string { return "enter the root file system" }

func (o Enter) lower(a *asm) {
	a.keepOld()
	a.root = slot(o.Root)
	if a.host != 0 {
		at := a.newSlot()
		a.call(unix.SYS_OPENAT2, a.host, a.rootfs, a.how(unix.O_PATH|unix.O_DIRECTORY, 0), 24).to(at)
		a.moveTo(a.root, at)
	} else {
		a.call(unix.SYS_MOVE_MOUNT, a.root, "", unix.AT_FDCWD, "/"+dirRoot, unix.MOVE_MOUNT_F_EMPTY_PATH)
	}
	if !a.features.MountSetattr {
		a.change(a.root, o.Propagation)
	}
	a.call(unix.SYS_UMASK, 0)
}

// Leave makes the container's root the root directory and takes the zygote's mounts away.
type Leave struct {
	// Propagation is a flag of mount(2) for the root and all below it, 0 to leave it. It comes
	// last, for pivot_root(2) refuses a root that is shared.
	Propagation uintptr `json:"propagation,omitempty"`
}

func (Leave) String() string { return "leave the starter's root" }

func (o Leave) lower(a *asm) {
	a.call(unix.SYS_FCHDIR, a.root)
	a.call(unix.SYS_PIVOT_ROOT, ".", ".")
	if a.host != 0 {
		a.call(unix.SYS_FCHDIR, a.host) // with the starter's in it
	} else {
		a.call(unix.SYS_FCHDIR, a.old)
	}
	a.call(unix.SYS_UMOUNT2, ".", unix.MNT_DETACH)
	a.call(unix.SYS_CHDIR, "/")
	if o.Propagation != 0 {
		a.call(unix.SYS_MOUNT, 0, "/", 0, o.Propagation, 0)
	}
}

// keepOld keeps the starter's own root within reach.
func (a *asm) keepOld() {
	if a.old == 0 {
		a.old = a.lasting()
		a.call(unix.SYS_OPENAT, unix.AT_FDCWD, "/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0).to(a.old)
	}
}

// Mount mounts a new file system, mount(2). Its directory is made if it is missing.
type Mount struct {
	Target string  `json:"target"`
	Type   string  `json:"type"`
	Source string  `json:"source,omitempty"`
	Flags  uintptr `json:"flags,omitempty"`
	Data   string  `json:"data,omitempty"`
	// ReadonlyLater mounts it writable, for others to be mounted in it, and makes it
	// read-only at the end.
	ReadonlyLater bool `json:"readonlyLater,omitempty"`
	// Propagation is a flag of mount(2) such as MS_SHARED.
	Propagation uintptr `json:"propagation,omitempty"`
	// NoLink refuses a target that is a symbolic link (CVE-2023-28642).
	NoLink bool `json:"noLink,omitempty"`
	// KeepMode gives it the mode of the directory it is mounted on, if that was there before.
	KeepMode bool `json:"keepMode,omitempty"`
	// CopyUp has the maker copy what the directory holds into it.
	CopyUp bool `json:"copyUp,omitempty"`
	// Label is the SELinux label of its root directory, for file systems without an option for it.
	Label string `json:"label,omitempty"`
}

func (o Mount) explain(errno unix.Errno) error {
	if o.NoLink && (errno == unix.ENOTDIR || errno == unix.ELOOP) {
		return fmt.Errorf("mount on %s: filesystem %q must be mounted on ordinary directory, not on a link or a file: %w", o.Target, o.Type,
			errno)
	}
	return nil
}

func (o Mount) String() string {
	s := fmt.Sprintf("mount %s on %s", o.Type, o.Target)
	if opts := join(flagNames(o.Flags), o.Data); opts != "" {
		s += " (" + opts + ")"
	}
	return s
}

func (o Mount) lower(a *asm) {
	var mode slot
	if o.KeepMode {
		mode = a.modeOf(o.Target)
	}
	t := a.findOrMakeAs(o.Target, true, o.NoLink)
	a.notInProc(t)
	if o.Type == "cgroup2" && o.Data == "" {
		a.mountAgain(o, t)
	} else {
		a.call(unix.SYS_FCHDIR, t)
		a.call(unix.SYS_MOUNT, o.Source, ".", o.Type, o.Flags, o.Data)
	}
	a.dirs = nil
	if o.KeepMode || o.CopyUp || o.Label != "" {
		a.fill(o, t, mode)
	}
	if !o.ReadonlyLater && o.Propagation == 0 {
		return
	}
	top := a.lasting()
	a.find(top, o.Target, unix.O_DIRECTORY, nil)
	if o.Propagation != 0 {
		a.call(unix.SYS_FCHDIR, top)
		a.call(unix.SYS_MOUNT, 0, ".", 0, o.Propagation, 0)
	}
	if o.ReadonlyLater {
		a.late = append(a.late, func() { a.remount(top, o.Flags|unix.MS_RDONLY, unix.MOUNT_ATTR_RDONLY) })
	}
}

// mountAgain mounts a file system that there is one of, which may be at this very place already:
// in a sysfs that was bound with all its mounts. mount(2) refuses that.
func (a *asm) mountAgain(o Mount, target slot) {
	fs := a.result(unix.SYS_FSOPEN, o.Type, unix.FSOPEN_CLOEXEC)
	a.call(unix.SYS_FSCONFIG, fs, unix.FSCONFIG_SET_STRING, "source", o.Source, 0)
	a.call(unix.SYS_FSCONFIG, fs, unix.FSCONFIG_CMD_CREATE, 0, 0, 0)
	mount := a.result(unix.SYS_FSMOUNT, fs, unix.FSMOUNT_CLOEXEC, uint64(attrsOf(o.Flags)))
	a.moveTo(mount, target)
}

// remount changes the flags of the mount at a descriptor: attrs are set, or, where
// mount_setattr(2) is missing, all its flags become these.
func (a *asm) remount(at slot, flags uintptr, attrs Attrs) {
	if a.features.MountSetattr {
		a.call(unix.SYS_MOUNT_SETATTR, at, "", unix.AT_EMPTY_PATH, a.u64s(uint64(attrs), 0, 0, 0), 32)
		return
	}
	a.change(at, flags|unix.MS_BIND|unix.MS_REMOUNT)
}

// change changes the mount at a descriptor with mount(2), which takes only paths. The path leads
// through the starter's own proc. Descriptor 0 is unused until all is mounted.
func (a *asm) change(at slot, flags uintptr) {
	a.call(unix.SYS_DUP3, at, 0, unix.O_CLOEXEC)
	a.call(unix.SYS_FCHDIR, a.old)
	a.call(unix.SYS_MOUNT, 0, dirProc+"/self/fd/0", 0, flags, 0)
}

// Finish makes read-only what had to be writable until all mounts were there.
type Finish struct {
	// ReadonlyRoot makes the root file system read-only.
	ReadonlyRoot bool `json:"readonlyRoot,omitempty"`
	// RootFlags are those of its mount, for mount(2) where mount_setattr(2) is missing.
	RootFlags uintptr `json:"rootFlags,omitempty"`
}

func (o Finish) String() string {
	if o.ReadonlyRoot {
		return "make the root file system read-only"
	}
	return "finish the mounts"
}

func (o Finish) lower(a *asm) {
	for _, f := range a.late {
		f()
	}
	if o.ReadonlyRoot {
		a.remount(a.root, o.RootFlags|unix.MS_RDONLY, unix.MOUNT_ATTR_RDONLY)
	}
}

// Attach puts a tree of the host's at a place in the container. The place is made if it is
// missing, as a directory or as an empty file.
type Attach struct {
	Tree   Fd     `json:"tree"`
	From   string `json:"from"` // for people
	Target string `json:"target"`
	Dir    bool   `json:"dir"`
	// Flags replace the mount's where mount_setattr(2) is missing, as flags of mount(2).
	Flags       uintptr `json:"flags,omitempty"`
	Propagation uintptr `json:"propagation,omitempty"`
}

func (o Attach) String() string {
	s := fmt.Sprintf("bind %s on %s", o.From, o.Target)
	if opts := join(flagNames(o.Flags)); opts != "" {
		s += " (" + opts + ")"
	}
	return s
}

func (o Attach) explain(errno unix.Errno) error {
	if errno != unix.EINVAL { // move_mount(2) says that of a directory and a file
		return nil
	}
	if o.Dir {
		return fmt.Errorf("%s: the target is not a directory, or mounts cannot be moved there: %w", o, errno)
	}
	return fmt.Errorf("%s: the source is not a directory but the target is, or mounts cannot be moved there: %w", o, errno)
}

func (o Attach) lower(a *asm) {
	t := a.findOrMake(o.Target, o.Dir)
	if !validate.MayMountInProc(path.Clean(o.Target)) {
		a.notInProc(t)
	}
	a.moveTo(slot(o.Tree), t)
	if a.features.MountSetattr || o.Flags&^unix.MS_REC == 0 && o.Propagation == 0 {
		return
	}
	// An old kernel: what the maker could not do to the tree beforehand.
	if o.Flags&^unix.MS_REC != 0 {
		a.change(slot(o.Tree), o.Flags|unix.MS_BIND|unix.MS_REMOUNT)
	}
	if o.Propagation != 0 {
		a.change(slot(o.Tree), o.Propagation)
	}
}

func (a *asm) moveTo(tree, target slot) *insn {
	a.dirs = nil
	return a.call(unix.SYS_MOVE_MOUNT, tree, "", target, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
}

// Mask hides a path: a directory shows nothing, a file is /dev/null. What does not exist is
// left alone.
type Mask struct {
	Path string `json:"path"`
	// Label is the SELinux label of what the directory shows.
	Label string `json:"label,omitempty"`
}

func (o Mask) String() string { return "mask " + o.Path }

func (o Mask) lower(a *asm) {
	t, end, file := a.newSlot(), &label{}, &label{}
	a.find(t, o.Path, 0, end, unix.ENOENT, unix.ENOTDIR)
	if o.Label != "" {
		const safe = unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NOEXEC | unix.MS_NODEV
		a.call(unix.SYS_FCHDIR, t).forgiving(file, unix.ENOTDIR)
		a.call(unix.SYS_MOUNT, "tmpfs", ".", "tmpfs", safe, join("mode=755,size=4k", contextOption(o.Label))).then(end)
		a.dirs = nil
	}
	m := a.result(unix.SYS_OPEN_TREE, a.old, dirMask, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	a.moveTo(m, t).then(end).forgiving(file, unix.EINVAL, unix.ENOTDIR) // a directory upon a file
	a.bind(file)
	n := a.result(unix.SYS_OPEN_TREE, a.old, fileNull, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	a.moveTo(n, t)
	a.bind(end)
}

// Readonly makes a path read-only, with all that is mounted below it. What does not exist is
// left alone.
type Readonly struct {
	Path string `json:"path"`
	// Flags are those of the mount that it is in, for mount(2) where mount_setattr(2) is missing.
	Flags uintptr `json:"flags,omitempty"`
}

func (o Readonly) String() string { return "make " + o.Path + " read-only" }

func (o Readonly) lower(a *asm) {
	t, end := a.newSlot(), &label{}
	a.find(t, o.Path, 0, end, unix.ENOENT, unix.ENOTDIR)
	c := a.result(unix.SYS_OPEN_TREE, t, "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH|unix.AT_RECURSIVE)
	if a.features.MountSetattr {
		a.call(unix.SYS_MOUNT_SETATTR, c, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, a.u64s(unix.MOUNT_ATTR_RDONLY, 0, 0, 0), 32)
		a.moveTo(c, t)
	} else {
		a.moveTo(c, t)
		a.remount(c, o.Flags|unix.MS_RDONLY, 0)
	}
	a.bind(end)
}

// Symlink makes a symbolic link, in a directory that is made if it is missing. One that is
// there already stays.
type Symlink struct {
	To   string `json:"to"`
	Path string `json:"path"`
}

func (o Symlink) String() string { return "link " + o.Path + " to " + o.To }

func (o Symlink) lower(a *asm) {
	dir := a.makeDirs(path.Dir(path.Clean("/" + o.Path)))
	a.call(unix.SYS_SYMLINKAT, o.To, dir, path.Base(o.Path)).forgiving(nil, unix.EEXIST)
}

// MakeDir makes a directory and those above it.
type MakeDir struct {
	Path string `json:"path"`
}

func (o MakeDir) String() string { return "make directory " + o.Path }

func (o MakeDir) lower(a *asm) { a.makeDirs(o.Path) }

// MakeFile makes an empty file, unless something is there.
type MakeFile struct {
	Path string `json:"path"`
}

func (o MakeFile) String() string { return "make file " + o.Path }

func (o MakeFile) lower(a *asm) { a.findOrMake(o.Path, false) }

// Device makes a device node, mknod(2). One that is there already stays.
type Device struct {
	Path  string `json:"path"`
	Type  uint32 `json:"type"` // S_IFCHR, S_IFBLK or S_IFIFO
	Major uint32 `json:"major"`
	Minor uint32 `json:"minor"`
	Mode  uint32 `json:"mode"` // permissions
	UID   uint32 `json:"uid,omitempty"`
	GID   uint32 `json:"gid,omitempty"`
}

func (o Device) String() string {
	kind := map[uint32]string{unix.S_IFCHR: "c", unix.S_IFBLK: "b", unix.S_IFIFO: "p"}[o.Type]
	return fmt.Sprintf("make device %s %s %d:%d mode %04o", o.Path, kind, o.Major, o.Minor, o.Mode)
}

func (o Device) lower(a *asm) {
	dir, there := a.makeDirs(path.Dir(path.Clean("/"+o.Path))), &label{}
	name := a.str(path.Base(o.Path))
	a.call(unix.SYS_MKNODAT, dir, name, o.Type|o.Mode, unix.Mkdev(o.Major, o.Minor)).forgiving(there, unix.EEXIST)
	if o.UID != 0 || o.GID != 0 {
		a.call(unix.SYS_FCHOWNAT, dir, name, o.UID, o.GID, unix.AT_SYMLINK_NOFOLLOW)
	}
	a.bind(there)
}

// join joins what is not empty with commas.
func join(parts ...string) string {
	var out []string
	for _, p := range parts {
		if p != "" {
			out = append(out, p)
		}
	}
	return strings.Join(out, ",")
}

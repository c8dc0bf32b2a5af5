package plan

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Open makes the copy of the mounts and returns its descriptor. It must be called in the
// mount namespace that Path is in. An IDMap is left to the caller; see SetIDMap.
func (t *Tree) Open(f Features) (int, error) {
	fd, err := t.take()
	if err != nil {
		return -1, err
	}
	if err := t.prepare(fd, f); err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

func (t *Tree) take() (int, error) {
	if t.Overlay != nil {
		return t.Overlay.open()
	}
	flags := uint(unix.OPEN_TREE_CLONE | unix.OPEN_TREE_CLOEXEC)
	if t.Recursive {
		flags |= unix.AT_RECURSIVE
	}
	fd, err := unix.OpenTree(unix.AT_FDCWD, t.Path, flags)
	if err != nil {
		return -1, fmt.Errorf("open %s to bind it: %w", t.Path, err)
	}
	return fd, nil
}

func (t *Tree) prepare(fd int, f Features) error {
	if t.Device != nil {
		if err := isDevice(fd, t.Device[0], t.Device[1]); err != nil {
			return fmt.Errorf("%s: %w", t.Path, err)
		}
	}
	if t.Proc {
		var st unix.Statfs_t
		if err := unix.Fstatfs(fd, &st); err != nil || st.Type != unix.PROC_SUPER_MAGIC {
			return fmt.Errorf("%s cannot be mounted on /proc because it is not of type proc", t.Path)
		}
	}
	if !f.MountSetattr {
		if t.SetAll|t.ClearAll != 0 {
			return fmt.Errorf("recursive mount options for %s need Linux 5.12", t.Path)
		}
		return nil // Attach does it
	}
	for _, step := range t.attributes() {
		attr := unix.MountAttr{Attr_set: uint64(step.set), Attr_clr: uint64(step.clear), Propagation: uint64(step.propagation &^ unix.MS_REC)}
		if err := setAttr(fd, step.all, &attr); err != nil {
			return fmt.Errorf("set the options of the mount of %s: %w", t.Path, err)
		}
	}
	return nil
}

// attributes is one call of mount_setattr(2).
type attributes struct {
	set, clear  Attrs
	propagation uintptr
	all         bool // for mounts below, too
}

// attributes are the calls that a copy needs.
func (t *Tree) attributes() []attributes {
	var out []attributes
	for _, step := range []attributes{
		{propagation: t.Propagation, all: t.Propagation&unix.MS_REC != 0},
		{set: t.Set, clear: t.Clear},
		{set: t.SetAll, clear: t.ClearAll, all: true},
	} {
		if step.set|step.clear != 0 || step.propagation&^unix.MS_REC != 0 {
			out = append(out, step)
		}
	}
	return out
}

// SetIDMap maps the owners of the files of an opened tree by a user namespace.
func (t *Tree) SetIDMap(fd, userns int) error {
	err := setAttr(fd, t.IDMapAll, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(userns)})
	if errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("map the owners of files in %s: its file system may not support id-mapped mounts: %w", t.Path, err)
	}
	if err != nil {
		return fmt.Errorf("map the owners of files in %s: %w", t.Path, err)
	}
	return nil
}

func setAttr(fd int, all bool, attr *unix.MountAttr) error {
	flags := uint(unix.AT_EMPTY_PATH)
	if all {
		flags |= unix.AT_RECURSIVE
	}
	return unix.MountSetattr(fd, "", flags, attr)
}

func isDevice(fd int, major, minor uint32) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFCHR && st.Mode&unix.S_IFMT != unix.S_IFBLK || st.Rdev != unix.Mkdev(major, minor) {
		return fmt.Errorf("is not device %d:%d", major, minor)
	}
	return nil
}

// Probe finds out what the kernel can do.
func Probe() Features {
	_, _, e := unix.Syscall6(unix.SYS_MOUNT_SETATTR, ^uintptr(0), uintptr(unsafe.Pointer(&[1]byte{})), 0, 0, 0, 0)
	return Features{MountSetattr: e != unix.ENOSYS}
}

package localpath

import (
	"errors"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// On btrfs with quotas enabled, a volume is a subvolume that can take no more than its claim asked
// for; projects.go does the same on ext4 and xfs. Without quotas it is a directory like any other:
// snapshots that an administrator makes of the disk leave subvolumes out.

// The structures and numbers are linux/btrfs.h's.
type (
	subvolume struct {
		_    int64
		name [4088]byte
	}
	qgroupLimit struct {
		qgroup          uint64 // 0: that of the subvolume which the descriptor is in
		flags, maxBytes uint64
		_, _, _         uint64 // limits of other kinds
	}
)

const (
	createSubvolume = 0x5000940e // BTRFS_IOC_SUBVOL_CREATE
	limitQgroup     = 0x8030942b // BTRFS_IOC_QGROUP_LIMIT
	limitReferenced = 1          // BTRFS_QGROUP_LIMIT_MAX_RFER
	noLimit         = ^uint64(0)
)

func ioctl(fd int, request uintptr, arg unsafe.Pointer) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(arg)); errno != 0 {
		return errno
	}
	return nil
}

// makeLimited makes a directory that can take so many bytes. It returns false, and makes nothing,
// where the file system has no quotas.
func (d dirs) makeLimited(parent int, name string, bytes uint64) (made bool, err error) {
	var fs unix.Statfs_t
	if err := unix.Fstatfs(parent, &fs); err != nil {
		return false, err
	}
	if fs.Type == unix.BTRFS_SUPER_MAGIC {
		return makeSubvolume(parent, name, bytes)
	}
	return d.projects.make(parent, name, bytes)
}

// makeSubvolume is makeLimited on btrfs.
func makeSubvolume(parent int, name string, bytes uint64) (made bool, err error) {
	var args subvolume
	copy(args.name[:len(args.name)-1], name)
	if err := ioctl(parent, createSubvolume, unsafe.Pointer(&args)); err != nil {
		return false, &os.PathError{Op: "make subvolume", Path: name, Err: err}
	}
	err = limit(parent, name, bytes)
	if err == nil {
		return true, nil
	}
	if errors.Is(err, unix.ENOTCONN) || errors.Is(err, unix.ENOENT) { // quotas are not enabled
		err = nil
	}
	return false, errors.Join(err, unix.Unlinkat(parent, name, unix.AT_REMOVEDIR))
}

// limit sets how much the subvolume name may take.
func limit(parent int, name string, bytes uint64) error {
	dir, err := unix.Openat(parent, name, openDir, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: name, Err: err}
	}
	defer unix.Close(dir)
	args := qgroupLimit{flags: limitReferenced, maxBytes: bytes}
	if err := ioctl(dir, limitQgroup, unsafe.Pointer(&args)); err != nil {
		return &os.PathError{Op: "limit", Path: name, Err: err}
	}
	return nil
}

// isSubvolume says whether the entry is a subvolume of btrfs: the number of its root directory is
// always this one.
func isSubvolume(parent int, name string) bool {
	var fs unix.Statfs_t
	var info unix.Stat_t
	const firstFree = 256 // BTRFS_FIRST_FREE_OBJECTID
	return unix.Fstatfs(parent, &fs) == nil && fs.Type == unix.BTRFS_SUPER_MAGIC &&
		unix.Fstatat(parent, name, &info, unix.AT_SYMLINK_NOFOLLOW) == nil && info.Ino == firstFree
}

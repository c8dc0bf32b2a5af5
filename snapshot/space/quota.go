package space

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Quotas counts and limits what directories take with the file system's project quotas
// (ext4 and xfs mounted with prjquota). Each directory is a project of its own; what
// is made in it belongs to it by inheritance. A nil *Quotas is a file system without.
type Quotas struct{ root *os.File }

// Find returns the quotas of the file system at root, nil if it counts or enforces none.
func Find(root string) *Quotas {
	f, err := os.Open(root)
	if err != nil {
		return nil
	}
	q, state := &Quotas{root: f}, quotaState{version: firstVersion}
	if err := q.call(getState, 0, unsafe.Pointer(&state)); err != nil || state.flags&enforced == 0 {
		_ = f.Close()
		return nil
	}
	return q
}

// Close lets go of the file system; nil is fine.
func (q *Quotas) Close() error {
	if q == nil {
		return nil
	}
	return q.root.Close()
}

// Begin makes a directory a project's, and sets its limit. All that is made in the directory from
// now on is counted. Nothing happens without quotas, or for project 0.
func (q *Quotas) Begin(dir string, project uint32, limit Usage) error {
	if q == nil || project == 0 {
		return nil
	}
	if err := q.set(project, limit); err != nil {
		return fmt.Errorf("set quota of %s: %w", dir, err)
	}
	if err := setProject(dir, project); err != nil {
		return fmt.Errorf("set project of %s: %w", dir, err)
	}
	return nil
}

// End lifts the limit, so that the next user of the project does not meet it. What is
// still to be deleted counts for that one until it is gone, unlimited.
func (q *Quotas) End(project uint32) {
	if q != nil && project != 0 {
		_ = q.set(project, Usage{}) // Begin sets it again in any case
	}
}

// Of is what a project takes, without a walk, and its limit.
func (q *Quotas) Of(project uint32) (used, limit Usage, err error) {
	b, err := q.get(project)
	return Usage{Bytes: int64(b.curSpace), Inodes: int64(b.curInodes)},
		Usage{Bytes: int64(b.hardSpace) * 1024, Inodes: int64(b.hardInodes)}, err
}

// dqblk is struct if_dqblk of linux/quota.h; limits of space are in blocks of 1024 bytes.
type dqblk struct {
	hardSpace, softSpace, curSpace    uint64
	hardInodes, softInodes, curInodes uint64
	spaceTime, inodeTime              uint64
	valid                             uint32
	_                                 uint32
}

// quotaState is struct fs_quota_statv of linux/dqblk_xfs.h.
type quotaState struct {
	version int8
	_       uint8
	flags   uint16
	_       [156]byte
}

const (
	projectQuota = 2                        // PRJQUOTA
	getState     = 0x5808<<8 | projectQuota // Q_XGETQSTATV
	firstVersion = 1                        // FS_QSTATV_VERSION1
	enforced     = 1 << 5                   // FS_QUOTA_PDQ_ENFD; ext4 can count without
	getQuota     = 0x800007<<8 | projectQuota
	setQuota     = 0x800008<<8 | projectQuota
	validLimits  = 1 | 4 // QIF_BLIMITS, QIF_ILIMITS
)

func (q *Quotas) get(project uint32) (dqblk, error) {
	var b dqblk
	err := q.call(getQuota, project, unsafe.Pointer(&b))
	if errors.Is(err, unix.ENOENT) { // xfs has no record before there is something to count
		err = nil
	}
	return b, err
}

func (q *Quotas) set(project uint32, limit Usage) error {
	return q.call(setQuota, project, unsafe.Pointer(&dqblk{
		hardSpace: uint64(limit.Bytes+1023) / 1024, hardInodes: uint64(limit.Inodes), valid: validLimits,
	}))
}

// call is quotactl_fd(2), Linux 5.14, which needs no name of a device.
func (q *Quotas) call(command uintptr, project uint32, arg unsafe.Pointer) error {
	_, _, errno := unix.Syscall6(unix.SYS_QUOTACTL_FD, q.root.Fd(), command, uintptr(project), uintptr(arg), 0, 0)
	if errno != 0 {
		return os.NewSyscallError("quotactl_fd", errno)
	}
	return nil
}

// fsxattr is struct fsxattr of linux/fs.h.
type fsxattr struct {
	xflags, extsize, nextents, project, cowextsize uint32
	_                                              [8]byte
}

const (
	getFsxattr     = 0x801c581f // FS_IOC_FSGETXATTR
	setFsxattr     = 0x401c5820 // FS_IOC_FSSETXATTR
	inheritProject = 0x200      // FS_XFLAG_PROJINHERIT
)

// setProject makes a directory a project's; what is made in it inherits that.
func setProject(dir string, project uint32) error {
	return withFsxattr(dir, func(fd int, x *fsxattr) error {
		x.project = project
		x.xflags |= inheritProject
		return ioctlFsxattr(fd, setFsxattr, "FS_IOC_FSSETXATTR", x)
	})
}

// ProjectOf is which project a directory is; 0 none.
func (q *Quotas) ProjectOf(dir string) (project uint32, err error) {
	if q == nil {
		return 0, nil
	}
	err = withFsxattr(dir, func(_ int, x *fsxattr) error {
		project = x.project
		return nil
	})
	return project, err
}

// withFsxattr calls f with an open directory and its attributes.
func withFsxattr(dir string, f func(fd int, x *fsxattr) error) error {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var x fsxattr
	if err := ioctlFsxattr(fd, getFsxattr, "FS_IOC_FSGETXATTR", &x); err != nil {
		return err
	}
	return f(fd, &x)
}

func ioctlFsxattr(fd int, request uintptr, name string, x *fsxattr) error {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(unsafe.Pointer(x)))
	if errno != 0 {
		return os.NewSyscallError(name, errno)
	}
	return nil
}

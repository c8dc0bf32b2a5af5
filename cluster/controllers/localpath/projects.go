package localpath

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// On ext4 and xfs that enforce project quotas, a volume is a project that can take no more than its
// claim asked for; what is made in it belongs to the project by inheritance. The directory is the
// only record of its project's number. A number is free if nothing on the file system is counted
// for it.

// Low numbers are administrators', and coracled's snapshots have 0x10000 for each driver from
// 0x0c0a0000 on.
const (
	firstProject = 0x0c100000
	projectCount = 0x00010000
)

// errNumbers is that every project has files.
var errNumbers = fmt.Errorf("all %d project numbers from %d on have files: remove volumes, or files that have such a number (lsattr -p)",
	projectCount, firstProject)

// projects gives numbers to the directories of one disk.
type projects struct {
	log    *slog.Logger
	kernel quotas
	told   sync.Once // that this process may not set quotas

	mu   sync.Mutex
	last uint32          // that was tried, counted from firstProject
	busy map[uint32]bool // given to directories that are being made
}

// quotas are what the kernel does: a test has others.
type quotas interface {
	// enforced says whether a directory made in parent can have a limit of its own.
	enforced(parent int) (bool, error)
	// makeAs makes a directory that is the project number and can take so many bytes. It returns
	// false, and makes nothing, if something has the number.
	makeAs(parent int, name string, number uint32, bytes uint64) (made bool, err error)
}

func newProjects(log *slog.Logger) *projects { return &projects{log: log, kernel: kernelQuotas{}} }

// next returns a number that no directory which is being made has. It is kept until done.
func (p *projects) next() uint32 {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		p.last = (p.last + 1) % projectCount
		if number := firstProject + p.last; !p.busy[number] { // there are only a few
			if p.busy == nil {
				p.busy = make(map[uint32]bool)
			}
			p.busy[number] = true
			return number
		}
	}
}

func (p *projects) done(number uint32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.busy, number)
}

// make makes a directory that can take so many bytes. It returns false, and makes nothing, where
// there are no project quotas for it. It returns errNumbers, and makes nothing, if no number is
// free.
func (p *projects) make(parent int, name string, bytes uint64) (made bool, err error) {
	enforced, err := p.kernel.enforced(parent)
	if err != nil || !enforced {
		return false, p.unusable(err)
	}
	for range projectCount {
		number := p.next()
		made, err := p.kernel.makeAs(parent, name, number, bytes)
		p.done(number)
		if made || err != nil {
			return made, p.unusable(err)
		}
	}
	return false, errNumbers
}

// unusable returns nil for errors that say that there are no project quotas, or none for this
// process, and others as they are.
func (p *projects) unusable(err error) error {
	for _, none := range []error{unix.ENOTTY, unix.EOPNOTSUPP, unix.ENOSYS, unix.ESRCH} {
		if errors.Is(err, none) {
			return nil
		}
	}
	// Without CAP_SYS_ADMIN or under seccomp, and of file systems that have other quotas only.
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EINVAL) {
		p.told.Do(func() { p.log.Warn("volumes have no limits: the kernel refuses project quotas", "err", err) })
		return nil
	}
	return err
}

// kernelQuotas are the quotas of the file system.
type kernelQuotas struct{}

// enforced is also false where the parent itself hands down a project: an administrator counts all
// volumes together there. Kernels before Linux 5.14 cannot be asked by a descriptor (ENOSYS).
func (kernelQuotas) enforced(parent int) (bool, error) {
	above, err := attributes(parent)
	if err != nil {
		return false, fmt.Errorf("FS_IOC_FSGETXATTR: %w", err)
	}
	if above.flags&inheritProject != 0 {
		return false, nil
	}
	state := quotaState{version: quotaStateFirst}
	err = quotactl(parent, getQuotaState, 0, unsafe.Pointer(&state))
	return state.flags&projectsEnforced != 0, err
}

func (kernelQuotas) makeAs(parent int, name string, number uint32, bytes uint64) (made bool, err error) {
	used, err := projectUse(parent, number)
	if err != nil || used.space != 0 || used.inodes != 0 {
		return false, err
	}
	// A crash leaves a limit of a number that is still free.
	if err := limitProject(parent, number, bytes); err != nil {
		return false, err
	}
	if err := unix.Mkdirat(parent, name, 0o700); err != nil {
		return false, errors.Join(&os.PathError{Op: "mkdir", Path: name, Err: err}, limitProject(parent, number, 0))
	}
	if err := setProject(parent, name, number); err != nil {
		return false, errors.Join(err, unix.Unlinkat(parent, name, unix.AT_REMOVEDIR), limitProject(parent, number, 0))
	}
	return true, nil
}

// setProject makes the directory name a project's; what is made in it inherits that.
func setProject(parent int, name string, number uint32) error {
	dir, err := unix.Openat(parent, name, openDir, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: name, Err: err}
	}
	defer unix.Close(dir)
	a, err := attributes(dir)
	if err == nil {
		a.project = number
		a.flags |= inheritProject
		err = ioctl(dir, setAttributes, unsafe.Pointer(&a))
	}
	if err != nil {
		return &os.PathError{Op: "set project", Path: name, Err: err}
	}
	return nil
}

// The structures and numbers are linux/fs.h's, linux/quota.h's and linux/dqblk_xfs.h's.
type (
	fsxattr struct {
		flags, extent, extents, project, sharedExtent uint32

		reserved [8]byte
	}
	quotaState struct {
		version int8
		_       uint8
		flags   uint16
		_       [156]byte
	}
	quotaBlock struct {
		hardSpace, softSpace, space    uint64 // limits are in blocks of 1024 bytes
		hardInodes, softInodes, inodes uint64
		spaceTime, inodeTime           uint64
		valid, reserved                uint32
	}
)

const (
	getAttributes  = 0x801c581f // FS_IOC_FSGETXATTR
	setAttributes  = 0x401c5820 // FS_IOC_FSSETXATTR
	inheritProject = 0x200      // FS_XFLAG_PROJINHERIT

	ofProjects       = 2                      // PRJQUOTA
	getQuotaState    = 0x5808<<8 | ofProjects // Q_XGETQSTATV
	getQuota         = 0x800007<<8 | ofProjects
	setQuota         = 0x800008<<8 | ofProjects
	quotaStateFirst  = 1      // FS_QSTATV_VERSION1
	projectsEnforced = 1 << 5 // FS_QUOTA_PDQ_ENFD
	validSpace       = 1      // QIF_BLIMITS
)

func attributes(fd int) (a fsxattr, err error) {
	return a, ioctl(fd, getAttributes, unsafe.Pointer(&a))
}

// projectUse returns what is counted for a project.
func projectUse(fd int, number uint32) (used quotaBlock, err error) {
	err = quotactl(fd, getQuota, number, unsafe.Pointer(&used))
	if errors.Is(err, unix.ENOENT) { // xfs has no record before there is something to count
		err = nil
	}
	return used, err
}

// limitProject sets how many bytes a project may take, 0 for any number.
func limitProject(fd int, number uint32, bytes uint64) error {
	limit := quotaBlock{hardSpace: bytes/1024 + min(bytes%1024, 1), valid: validSpace}
	return quotactl(fd, setQuota, number, unsafe.Pointer(&limit))
}

func quotactl(fd int, command uintptr, number uint32, arg unsafe.Pointer) error {
	if _, _, errno := unix.Syscall6(unix.SYS_QUOTACTL_FD, uintptr(fd), command, uintptr(number), uintptr(arg), 0, 0); errno != 0 {
		return os.NewSyscallError("quotactl_fd", errno)
	}
	return nil
}

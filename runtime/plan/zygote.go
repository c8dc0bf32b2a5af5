package plan

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// ZygoteName is the starter's name among processes, at most 15 bytes.
const ZygoteName = "coracle-zygote"

// What the zygote's own root holds.
const (
	dirRoot  = "root" // where a container's root file system is put
	dirMask  = "mask" // an empty read-only directory
	fileNull = "null" // /dev/null
	dirProc  = "proc"
	dirSys   = "sys"
)

// Zygote is the plan by which a starter makes its own surroundings, once: a mount namespace
// in which nothing of the host is left. proc and sysfs are mounted whole, or a user namespace
// below would not be allowed its own (mount_namespaces(7), "fully visible").
//
// With noPivot it does without pivot_root(2) where that cannot be: where the root directory is
// a ramdisk's or no mount point (--no-pivot). Then the host's mounts stay below its own in the
// namespace, where paths do not lead, but where a privileged container may find them.
func Zygote(noPivot bool) *Plan {
	return &Plan{Opens: []Open{{Name: FdSync}, {Name: "null", Tree: nullDevice()}}, Ops: []Op{setUp{null: 1, noPivot: noPivot}}}
}

func nullDevice() *Tree {
	return &Tree{Path: "/dev/null", Propagation: unix.MS_PRIVATE, Device: &[2]uint32{1, 3}}
}

type setUp struct {
	null    Fd
	noPivot bool
}

func (setUp) String() string { return "set up the starter" }

func (o setUp) explain(errno unix.Errno) error {
	if errno != unix.EINVAL || o.noPivot {
		return nil
	}
	return fmt.Errorf("%s: %w: if the root directory is a ramdisk's or no mount point, use --no-pivot", o, errno)
}

func (o setUp) lower(a *asm) {
	// It must not be traced, nor its memory and descriptors read, by what it starts.
	a.call(unix.SYS_PRCTL, unix.PR_SET_DUMPABLE, 0, 0, 0, 0)
	a.call(unix.SYS_UNSHARE, unix.CLONE_FS|unix.CLONE_NEWNS)
	a.surroundings(slot(o.null), o.noPivot, func() {
		a.call(unix.SYS_MOUNT, "proc", dirProc, "proc", safeFlags, 0)
		a.call(unix.SYS_MOUNT, "sysfs", dirSys, "sysfs", safeFlags|unix.MS_RDONLY, 0)
	})
}

const safeFlags = unix.MS_NOSUID | unix.MS_NOEXEC | unix.MS_NODEV

// surroundings makes a root directory that holds nothing of the host's but proc and sysfs, which
// fill puts there, and the device /dev/null, in a mount namespace of this process's own.
func (a *asm) surroundings(null slot, noPivot bool, fill func()) {
	a.call(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, a.u64s(0), 0, 8)
	a.call(unix.SYS_PRCTL, unix.PR_SET_NAME, ZygoteName, 0, 0, 0)
	a.leaveChroot()
	a.call(unix.SYS_MOUNT, 0, "/", 0, unix.MS_REC|unix.MS_PRIVATE, 0)
	a.call(unix.SYS_UMASK, 0)
	// Drop capabilities that this program does not know.
	for c := len(capNames); c < 64; c++ {
		a.call(unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, c, 0, 0, 0).forgiving(nil, unix.EINVAL)
	}
	// Upon any directory there is; it is hidden in this namespace only.
	a.call(unix.SYS_MOUNT, "tmpfs", "/proc", "tmpfs", safeFlags, "mode=755,size=64k")
	a.call(unix.SYS_CHDIR, "/proc")
	for _, d := range []string{dirRoot, dirMask, dirProc, dirSys} {
		a.call(unix.SYS_MKDIRAT, unix.AT_FDCWD, d, 0o755)
	}
	a.call(unix.SYS_MKNODAT, unix.AT_FDCWD, fileNull, unix.S_IFREG|0o644, 0)
	fill()
	a.call(unix.SYS_MOUNT, "tmpfs", dirMask, "tmpfs", unix.MS_RDONLY|safeFlags, "mode=755,size=4k")
	a.call(unix.SYS_MOVE_MOUNT, null, "", unix.AT_FDCWD, fileNull, unix.MOVE_MOUNT_F_EMPTY_PATH)
	a.becomeRootDirectory(noPivot)
	a.call(unix.SYS_CHDIR, "/")
	a.call(unix.SYS_MOUNT, 0, "/", 0, unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|safeFlags, 0)
}

// leaveChroot takes the root directory of the mount namespace, if the maker is in a chroot: that is
// what must be replaced, because setns(2) leads there who joins the namespace. To join one's own
// takes CAP_SYS_CHROOT, and so does to have been put into a chroot.
func (a *asm) leaveChroot() {
	self, pidfd, refused := a.result(unix.SYS_GETPID), a.newSlot(), &label{}
	a.call(unix.SYS_PIDFD_OPEN, self, 0).to(pidfd)
	a.call(unix.SYS_SETNS, pidfd, unix.CLONE_NEWNS).forgiving(refused, unix.EPERM)
	a.bind(refused)
	a.call(unix.SYS_CLOSE, pidfd)
}

// becomeRootDirectory makes the working directory, a mount, the root directory.
func (a *asm) becomeRootDirectory(noPivot bool) {
	pivoted, moved := &label{}, &label{}
	pivot := a.call(unix.SYS_PIVOT_ROOT, ".", ".").then(pivoted)
	if noPivot {
		pivot.forgiving(nil, unix.EINVAL)
		a.call(unix.SYS_MOUNT, ".", "/", 0, unix.MS_MOVE, 0)
		a.call(unix.SYS_CHROOT, ".").then(moved)
	}
	a.bind(pivoted)
	a.call(unix.SYS_UMOUNT2, ".", unix.MNT_DETACH)
	a.bind(moved)
}

package plan

import (
	"golang.org/x/sys/unix"
)

// Terminal makes a pseudoterminal in the container's devpts, sends its master away and makes
// it the standard streams and /dev/console.
type Terminal struct {
	Console       Fd     `json:"console"`
	Width, Height uint16 // 0: as the kernel has it
	UID           uint32 `json:"uid"`
	// Bind shows it as /dev/console.
	Bind bool `json:"bind"`
}

func (o Terminal) String() string { return "make a terminal" }

func (o Terminal) lower(a *asm) {
	// Not through the link /dev/ptmx, which is the image's to make. A device that is no
	// pseudoterminal's does not know TIOCGPTPEER, which gives this master's other side and
	// nothing that a path could be made to lead to.
	how := a.how(unix.O_RDWR|unix.O_NOCTTY, unix.RESOLVE_NO_SYMLINKS)
	master := a.result(unix.SYS_OPENAT2, a.root, "/dev/pts/ptmx", how, 24)
	a.call(unix.SYS_IOCTL, master, unix.TIOCSPTLCK, a.u32s(0))
	slave := a.result(unix.SYS_IOCTL, master, unix.TIOCGPTPEER, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)
	if o.Width != 0 || o.Height != 0 {
		a.call(unix.SYS_IOCTL, master, unix.TIOCSWINSZ, a.u32s(uint32(o.Height)|uint32(o.Width)<<16, 0))
	}
	if o.UID != 0 {
		a.call(unix.SYS_FCHOWN, slave, o.UID, uint64(0xffffffff)) // the group stays devpts's gid
	}
	if o.Bind {
		console := a.findOrMake("/dev/console", false)
		a.notInProc(console)
		tree := a.result(unix.SYS_OPEN_TREE, slave, "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH)
		a.moveTo(tree, console)
	}
	a.sendFd(slot(o.Console), master)
	a.call(unix.SYS_CLOSE, master)
	for fd := range 3 {
		a.call(unix.SYS_DUP3, slave, fd, 0)
	}
}

// Session starts a session of the process's own, setsid(2), with the terminal on its standard
// input as the controlling one.
type Session struct {
	Terminal bool `json:"terminal,omitempty"`
}

func (o Session) String() string { return "begin a session" }

func (o Session) lower(a *asm) {
	a.call(unix.SYS_SETSID)
	if o.Terminal {
		a.call(unix.SYS_IOCTL, 0, unix.TIOCSCTTY, 0)
	}
}

// sendFd sends a descriptor over a unix socket, with SCM_RIGHTS (unix(7)).
func (a *asm) sendFd(sock, fd slot) {
	const name = "/dev/ptmx" // as runc sends it
	iov := a.u64s(0, uint64(len(name)))
	a.pointAt(iov, a.str(name))
	control := a.u64s(20, unix.SOL_SOCKET|unix.SCM_RIGHTS<<32, 0)
	a.call(opPoke32, control+16, fd)
	msg := a.u64s(0, 0, 0, 1, 0, 24, 0)
	a.pointAt(msg+16, iov)
	a.pointAt(msg+32, control)
	a.call(unix.SYS_SENDMSG, sock, msg, unix.MSG_NOSIGNAL)
}

// pointAt makes a word of the data the address of other data.
func (a *asm) pointAt(at, to data) {
	le.PutUint64(a.data[at:], uint64(to))
	a.pointers = append(a.pointers, int(at))
}

// Stdio gives the process its descriptors 0, 1 and 2, and them to its user, who may want to
// open them again through /dev/stdout.
type Stdio struct {
	Fds [3]Fd  `json:"fds"`
	UID uint32 `json:"uid,omitempty"`
}

func (o Stdio) String() string { return "attach the standard streams" }

func (o Stdio) lower(a *asm) {
	const uid = 20 // in struct statx
	null, have := a.containersNull()
	for i, fd := range o.Fds {
		a.call(unix.SYS_DUP3, slot(fd), i, 0)
		isNull, done := &label{}, &label{}
		st := a.ifNull(i, isNull)
		a.call(opIfMem32Eq, st+uid, o.UID).then(done)
		// The file system has no owners, or the owner has no id in this user namespace.
		a.call(unix.SYS_FCHOWN, i, o.UID, uint64(^uint32(0))).forgiving(nil, unix.EINVAL, unix.EPERM, unix.EROFS)
		a.call(opIfEq, 0, 0).then(done)
		// /dev/null is everybody's, but the host's would keep a mount of the host's in use.
		a.bind(isNull)
		a.call(opIfEq, have, 0).then(done)
		a.call(unix.SYS_DUP3, null, i, 0)
		a.bind(done)
	}
}

// containersNull opens the container's own /dev/null. What an image has in that place may be
// anything, so have is 1 only if it is the device.
func (a *asm) containersNull() (null, have slot) {
	null, have = a.newSlot(), a.constant(0)
	is, end := &label{}, &label{}
	a.call(unix.SYS_OPENAT2, a.root, "/dev/null", a.how(unix.O_RDWR|unix.O_NOCTTY|unix.O_NONBLOCK, unix.RESOLVE_NO_SYMLINKS), 24).to(null).
		forgiving(end, unix.ENOENT, unix.ENOTDIR, unix.ELOOP, unix.EACCES, unix.EPERM, unix.ENXIO, unix.ENODEV, unix.EISDIR, unix.EROFS)
	a.ifNull(null, is)
	a.call(opIfEq, 0, 0).then(end)
	a.bind(is)
	a.call(unix.SYS_FCNTL, null, unix.F_SETFL, unix.O_RDWR)
	a.call(opSet, 1).to(have)
	a.bind(end)
	return null, have
}

// ifNull skips to a label if a descriptor is device 1:3. It returns what statx(2) says of it.
func (a *asm) ifNull(fd any, is *label) data {
	const major, minor, size = 128, 132, 256 // in struct statx
	st, other := a.bytes(make([]byte, size), 8), &label{}
	a.call(unix.SYS_STATX, fd, "", unix.AT_EMPTY_PATH, unix.STATX_UID|unix.STATX_TYPE, st)
	maybe := &label{}
	a.call(opIfMem32Eq, st+major, 1).then(maybe)
	a.call(opIfEq, 0, 0).then(other)
	a.bind(maybe)
	a.call(opIfMem32Eq, st+minor, 3).then(is)
	a.bind(other)
	return st
}

// KeepFds closes all descriptors but the standard streams, the files that the process is
// given, which become 3 and on, and what the plan still needs, which the program does not get.
// Nothing of the host's is open afterwards.
type KeepFds struct {
	Files []Fd `json:"files,omitempty"`
	Gate  Fd   `json:"gate"` // -1: none
}

func (o KeepFds) String() string { return "close all descriptors of the host" }

func (o KeepFds) lower(a *asm) {
	aside := 3 + len(o.Files) + 2 // above what they are to become
	keep := make([]slot, 0, len(o.Files)+2)
	move := func(s slot) { keep = append(keep, a.result(unix.SYS_FCNTL, s, unix.F_DUPFD_CLOEXEC, aside)) }
	for _, f := range o.Files {
		move(slot(f))
	}
	move(a.sync)
	if o.Gate >= 0 {
		move(slot(o.Gate))
	}
	for i, s := range keep {
		flags := 0
		if i >= len(o.Files) {
			flags = unix.O_CLOEXEC
		}
		a.call(unix.SYS_DUP3, s, 3+i, flags)
	}
	a.call(unix.SYS_CLOSE_RANGE, 3+len(keep), uint64(^uint32(0)), 0)
	a.sync = a.constant(3 + len(o.Files))
	if o.Gate >= 0 {
		a.gate = a.constant(4 + len(o.Files))
	}
	// The interpreter's own report goes to the plan's first slot.
	a.call(opSet, a.sync).to(0)
}

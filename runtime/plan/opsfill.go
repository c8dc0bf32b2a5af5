package plan

import (
	"golang.org/x/sys/unix"
)

// fill is what is left to do to a file system that has just been mounted on a directory.
func (a *asm) fill(o Mount, below, mode slot) {
	top := a.result(unix.SYS_OPENAT2, a.root, o.Target, a.how(unix.O_RDONLY|unix.O_DIRECTORY, 0), 24)
	if o.CopyUp {
		msg := a.u32s(ReportCopyUp, 0, 0, 0)
		a.call(opPoke32, msg+4, below)
		a.call(opPoke32, msg+8, top)
		a.call(unix.SYS_WRITE, a.sync, msg, 16)
		a.await(a.sync)
	}
	if o.KeepMode {
		made := &label{}
		a.call(opIfEq, mode, 0).then(made)
		a.call(unix.SYS_FCHMOD, top, mode)
		a.bind(made)
	}
	if o.Label != "" {
		const flags = 0
		a.call(unix.SYS_FSETXATTR, top, "security.selinux", o.Label, len(o.Label)+1, flags).forgiving(nil, unix.EOPNOTSUPP)
	}
	a.call(unix.SYS_CLOSE, top)
}

// modeOf is the mode of what a path leads to, 0 if there is nothing.
func (a *asm) modeOf(p string) slot {
	const at, size = 28, 256 // of the mode in struct statx, whose upper half is zero
	fd, mode, none := a.newSlot(), a.newSlot(), &label{}
	a.call(opSet, 0).to(mode)
	a.find(fd, p, 0, none, unix.ENOENT)
	st := a.bytes(make([]byte, size), 8)
	a.call(unix.SYS_STATX, fd, "", unix.AT_EMPTY_PATH, unix.STATX_TYPE|unix.STATX_MODE, st)
	a.call(unix.SYS_CLOSE, fd)
	a.call(opLoad32, st+at).to(mode)
	a.bind(none)
	return mode
}

// contextOption is the mount option that gives all files of a file system an SELinux label.
// Labels may have commas, hence the quotes.
func contextOption(label string) string {
	if label == "" {
		return ""
	}
	return `context="` + label + `"`
}

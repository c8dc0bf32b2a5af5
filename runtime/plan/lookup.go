package plan

import (
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// Every path of the container is looked up below its root, without magic links: they could
// lead to the descriptors of the process that makes the container. See openat2(2).
const resolve = unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS

func (a *asm) how(flags int, extra uint64) data {
	return a.u64s(uint64(flags|unix.O_CLOEXEC), 0, resolve|extra)
}

// find looks a path up, O_PATH and flags, and leaves the descriptor in s. errs end at missing.
func (a *asm) find(s slot, p string, flags int, missing *label, errs ...unix.Errno) {
	in := a.call(unix.SYS_OPENAT2, a.root, p, a.how(unix.O_PATH|flags, 0), 24).to(s)
	if missing != nil {
		in.forgiving(missing, errs...)
	}
}

// findOrMake looks a mount's target up and makes it if it is not there: a directory, or an
// empty file. Missing directories on the way are made, too.
func (a *asm) findOrMake(p string, dir bool) slot { return a.findOrMakeAs(p, dir, false) }

// findOrMakeAs is findOrMake for a target that may be required not to be a symbolic link.
func (a *asm) findOrMakeAs(p string, dir, noLink bool) slot {
	p = path.Clean("/" + p)
	flags := 0
	if noLink {
		flags = unix.O_NOFOLLOW | unix.O_DIRECTORY
	}
	target := a.newSlot()
	if p == "/" {
		a.find(target, ".", 0, nil)
		return target
	}
	there := &label{}
	a.call(unix.SYS_OPENAT2, a.root, p, a.how(unix.O_PATH|flags, 0), 24).to(target).then(there).forgiving(nil, unix.ENOENT)
	ask := &label{}
	parent := a.makeDirsOr(path.Dir(p), a.newSlot(), ask) // only if it is not there, so nothing to remember
	name := path.Base(p)
	if dir {
		a.call(unix.SYS_MKDIRAT, parent, name, 0o755).forgiving(nil, unix.EEXIST)
	} else {
		a.call(unix.SYS_MKNODAT, parent, name, unix.S_IFREG|0o644, 0).forgiving(nil, unix.EEXIST)
	}
	a.call(unix.SYS_OPENAT2, a.root, p, a.how(unix.O_PATH|flags, 0), 24).to(target).then(there).forgiving(ask, unix.ENOENT)
	a.bind(ask)
	a.askFor(p, dir)
	a.find(target, p, flags, nil)
	a.bind(there)
	return target
}

// askFor has the maker make what a path leads to through links to nothing: no system call makes
// what a link of the image names.
func (a *asm) askFor(p string, dir bool) {
	a.targets = append(a.targets, Target{p, dir})
	msg := a.u32s(ReportTarget, uint32(len(a.targets)-1), 0, 0)
	a.call(opPoke32, msg+8, a.root)
	a.call(unix.SYS_WRITE, a.sync, msg, 16)
	a.await(a.sync)
}

// makeDirs makes a directory and those above it, as far as they are missing, and leaves it in
// a lasting slot.
func (a *asm) makeDirs(p string) slot {
	p = path.Clean("/" + p)
	if s, ok := a.dirs[p]; ok {
		return s
	}
	if p == "/" {
		return a.root
	}
	s := a.makeDirsAnew(p, a.lasting())
	if a.dirs == nil {
		a.dirs = map[string]slot{}
	}
	a.dirs[p] = s
	return s
}

func (a *asm) makeDirsAnew(p string, last slot) slot { return a.makeDirsOr(p, last, nil) }

// makeDirsOr is makeDirsAnew that goes on at a label if a link on the way leads to nothing.
func (a *asm) makeDirsOr(p string, last slot, nothing *label) slot {
	if p == "/" {
		return a.root
	}
	done := &label{}
	a.call(unix.SYS_OPENAT2, a.root, p, a.how(unix.O_PATH|unix.O_DIRECTORY, 0), 24).to(last).then(done).forgiving(nil, unix.ENOENT)
	parent := a.root
	parts := strings.Split(p[1:], "/")
	for i, name := range parts {
		a.call(unix.SYS_MKDIRAT, parent, name, 0o755).forgiving(nil, unix.EEXIST)
		s := last
		if i < len(parts)-1 {
			s = a.newSlot()
		}
		a.find(s, "/"+strings.Join(parts[:i+1], "/"), unix.O_DIRECTORY, nothing, unix.ENOENT)
		parent = s
	}
	a.bind(done)
	return last
}

// notInProc fails if a mount's target lies in proc, by whatever way it was found.
func (a *asm) notInProc(target slot) {
	const size = 120 // of struct statfs
	buf := a.bytes(make([]byte, size), 8)
	a.call(unix.SYS_FSTATFS, target, buf)
	bad, good := &label{}, &label{}
	a.call(opIfMem32Eq, buf, uint32(unix.PROC_SUPER_MAGIC)).then(bad)
	a.call(opIfEq, 0, 0).then(good)
	a.bind(bad)
	a.call(opFail, int(unix.EPERM))
	a.bind(good)
}

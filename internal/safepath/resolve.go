package safepath

import (
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// maxRetries bounds how often openat2 is asked again: it answers EAGAIN when a
// rename or mount anywhere on the machine raced with a ".." of the path. On a machine that mounts
// all the time, the last ones wait a moment each.
const maxRetries, quickRetries, retryPause = 512, 256, 2 * time.Millisecond

// openat resolves path under the root. flags are those of open(2).
func (r *Root) openat(path string, flags int, mode uint32) (int, error) {
	if path == "" {
		path = "."
	}
	return openat2(r.fd, path, flags, mode, r.resolve)
}

func openat2(dirfd int, path string, flags int, mode uint32, resolve uint64) (int, error) {
	how := unix.OpenHow{Flags: uint64(flags) | unix.O_CLOEXEC, Resolve: resolve}
	if flags&unix.O_CREAT != 0 {
		how.Mode = uint64(mode & 0o7777) // the kernel refuses a mode without O_CREAT
	}
	for try := 0; ; try++ {
		fd, err := unix.Openat2(dirfd, path, &how)
		if (err == unix.EAGAIN || err == unix.EINTR) && try < maxRetries {
			if try >= quickRetries {
				time.Sleep(retryPause)
			}
			continue
		}
		return fd, err
	}
}

// split takes the last component off a path. A path without one (the root
// itself, or one that ends in "..") is refused: what is to be created or removed
// must have a name.
func split(path string) (parent, base string, err error) {
	path = strings.TrimRight(path, "/")
	i := strings.LastIndexByte(path, '/')
	parent, base = path[:i+1], path[i+1:]
	if !plain(base) {
		return "", "", unix.EINVAL
	}
	return parent, base, nil
}

// plain says whether name is one component that names an entry of its directory.
func plain(name string) bool {
	return name != "" && name != "." && name != ".." && !strings.ContainsAny(name, "/\x00")
}

// Real is the host's path of what path leads to, without links. It holds only as long as
// nothing in the root is renamed: use it for roots that are mounted read-only.
func (r *Root) Real(path string) (string, error) {
	fd, err := r.openat(path, unix.O_PATH, 0)
	if err != nil {
		return "", r.fail("resolve", path, err)
	}
	defer unix.Close(fd)
	real, err := os.Readlink(procName(fd))
	if err != nil {
		return "", r.fail("resolve", path, err)
	}
	return real, nil
}

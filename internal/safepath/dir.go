package safepath

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Dir is an open directory inside a root, the result of resolving a path once.
// Its methods take single names, act on the name itself (never on what a link
// there points at) and refuse anything with a slash, "." and "..", as ErrEscapes.
// A Dir keeps naming its directory when that is renamed. Modes are the low 12
// bits of st_mode. Close it.
type Dir struct {
	fd   int
	path string // for errors only
}

// Close releases the directory.
func (d *Dir) Close() error {
	if d.fd < 0 {
		return nil
	}
	fd := d.fd
	d.fd = -1
	return unix.Close(fd)
}

func (d *Dir) fail(op, name string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s %q in %q: %w", op, name, d.path, err)
}

// at runs one system call on a checked name.
func (d *Dir) at(op, name string, call func() error) error {
	if !plain(name) {
		return d.fail(op, name, ErrEscapes)
	}
	for {
		err := call()
		if err == unix.EINTR {
			continue
		}
		return d.fail(op, name, err)
	}
}

// Create makes a regular file that must not exist, open for reading and writing.
func (d *Dir) Create(name string, mode uint32) (*os.File, error) {
	var fd int
	err := d.at("create", name, func() (err error) {
		fd, err = unix.Openat(d.fd, name, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, mode&0o7777)
		return err
	})
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

// OpenDir opens a directory in this one, not following a link.
func (d *Dir) OpenDir(name string) (*Dir, error) {
	fd := -1
	err := d.at("open directory", name, func() (err error) {
		fd, err = unix.Openat(d.fd, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		return err
	})
	if err != nil {
		return nil, err
	}
	return &Dir{fd: fd, path: d.path + "/" + name}, nil
}

// Mkdir makes a directory; the process' umask applies to mode.
func (d *Dir) Mkdir(name string, mode uint32) error {
	return d.at("mkdir", name, func() error { return unix.Mkdirat(d.fd, name, mode&0o7777) })
}

// ensure opens a directory in this one, and makes it if there is none, with just that mode.
func (d *Dir) ensure(path string, mode uint32) (sub *Dir, made bool, err error) {
	_, name, err := split(path)
	if err != nil {
		return nil, false, d.fail("mkdir", path, err)
	}
	err = d.Mkdir(name, mode)
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return nil, false, err
	}
	made = err == nil
	if made {
		err = d.Chmod(name, mode) // whatever the umask
	} else {
		err = nil
	}
	if err == nil {
		sub, err = d.OpenDir(name)
	}
	return sub, made, err
}

// Symlink makes a symbolic link; target is stored as it is.
func (d *Dir) Symlink(target, name string) error {
	return d.at("symlink", name, func() error { return unix.Symlinkat(target, d.fd, name) })
}

// Link makes a hard link name to old in from; a symbolic link is linked itself.
func (d *Dir) Link(from *Dir, old, name string) error {
	if !plain(old) {
		return from.fail("link", old, ErrEscapes)
	}
	return d.at("link", name, func() error { return unix.Linkat(from.fd, old, d.fd, name, 0) })
}

// Mknod makes a device, fifo or socket; mode includes the S_IF type.
func (d *Dir) Mknod(name string, mode uint32, dev uint64) error {
	return d.at("mknod", name, func() error { return unix.Mknodat(d.fd, name, mode, int(dev)) })
}

// Rename moves old here to name in to, replacing what is there as rename(2).
func (d *Dir) Rename(old string, to *Dir, name string) error {
	if !plain(name) {
		return to.fail("rename", name, ErrEscapes)
	}
	return d.at("rename", old, func() error { return unix.Renameat(d.fd, old, to.fd, name) })
}

// Lstat describes an entry.
func (d *Dir) Lstat(name string) (unix.Stat_t, error) {
	var st unix.Stat_t
	err := d.at("lstat", name, func() error {
		return unix.Fstatat(d.fd, name, &st, unix.AT_SYMLINK_NOFOLLOW)
	})
	return st, err
}

// Stat describes the directory itself.
func (d *Dir) Stat() (unix.Stat_t, error) {
	var st unix.Stat_t
	return st, d.fail("stat", ".", unix.Fstat(d.fd, &st))
}

// Depth is how many levels below the root the directory is, whatever links led to it. ErrTooDeep if
// the path would be longer than paths can be.
func (d *Dir) Depth(root *Root) (int, error) {
	at, err := os.Readlink(procName(d.fd))
	if errors.Is(err, unix.ENAMETOOLONG) {
		return 0, d.fail("find", ".", ErrTooDeep)
	}
	if err != nil {
		return 0, d.fail("find", ".", err)
	}
	top, err := os.Readlink(procName(root.fd))
	if err != nil {
		return 0, root.fail("find", ".", err)
	}
	return strings.Count(strings.TrimPrefix(at, strings.TrimSuffix(top, "/")), "/"), nil
}

// Readlink returns where a symbolic link points, as stored.
func (d *Dir) Readlink(name string) (string, error) {
	buf := make([]byte, unix.PathMax)
	var n int
	err := d.at("readlink", name, func() (err error) {
		n, err = unix.Readlinkat(d.fd, name, buf)
		return err
	})
	return string(buf[:n]), err
}

// Lchown sets owner and group; -1 leaves one as it is.
func (d *Dir) Lchown(name string, uid, gid int) error {
	return d.at("chown", name, func() error {
		return unix.Fchownat(d.fd, name, uid, gid, unix.AT_SYMLINK_NOFOLLOW)
	})
}

// Chmod sets the mode of an entry; of a symbolic link it fails, never acting
// on the link's target.
func (d *Dir) Chmod(name string, mode uint32) error {
	return d.at("chmod", name, func() error {
		err := unix.Fchmodat(d.fd, name, mode&0o7777, unix.AT_SYMLINK_NOFOLLOW)
		if !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.ENOSYS) {
			return err
		}
		return d.chmodByProc(name, mode)
	})
}

// chmodByProc is Chmod for kernels before fchmodat2 (6.6): the entry is pinned
// with O_PATH and changed by the name of our own descriptor.
func (d *Dir) chmodByProc(name string, mode uint32) error {
	fd, err := unix.Openat(d.fd, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFLNK {
		return unix.EOPNOTSUPP
	}
	return unix.Chmod(procName(fd), mode&0o7777)
}

// Utimes sets access and modification time; a zero time leaves one as it is.
func (d *Dir) Utimes(name string, atime, mtime time.Time) error {
	ts := []unix.Timespec{timespec(atime), timespec(mtime)}
	return d.at("set times of", name, func() error {
		return unix.UtimesNanoAt(d.fd, name, ts, unix.AT_SYMLINK_NOFOLLOW)
	})
}

// Lsetxattr sets an extended attribute of the entry itself. There is no
// setxattrat before kernel 6.13, so the name goes through our own descriptor in
// /proc; the last component is not followed.
func (d *Dir) Lsetxattr(name, attr string, value []byte) error {
	return d.at("set attribute "+attr+" of", name, func() error {
		return unix.Lsetxattr(procName(d.fd)+"/"+name, attr, value, 0)
	})
}

// Lgetxattr reads an extended attribute of the entry itself.
func (d *Dir) Lgetxattr(name, attr string) ([]byte, error) {
	buf := make([]byte, 64<<10) // the kernel's limit of one value
	var n int
	err := d.at("get attribute "+attr+" of", name, func() (err error) {
		n, err = unix.Lgetxattr(procName(d.fd)+"/"+name, attr, buf)
		return err
	})
	if err != nil {
		return nil, err
	}
	return buf[:n:n], nil
}

func procName(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

func timespec(t time.Time) unix.Timespec {
	if t.IsZero() {
		return unix.Timespec{Nsec: unix.UTIME_OMIT}
	}
	return unix.Timespec{Sec: t.Unix(), Nsec: int64(t.Nanosecond())}
}

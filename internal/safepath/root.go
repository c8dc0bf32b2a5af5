package safepath

import (
	"errors"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// OpenFile opens a path with open(2)'s flags. With O_CREATE a link in the last
// component is an error instead of being followed. A fifo blocks unless flags
// have O_NONBLOCK: see ReadFile for files of unknown kind.
func (r *Root) OpenFile(path string, flags int, mode uint32) (*os.File, error) {
	if flags&unix.O_CREAT != 0 {
		flags |= unix.O_NOFOLLOW
	}
	fd, err := r.openat(path, flags, mode)
	if err != nil {
		return nil, r.fail("open", path, err)
	}
	return os.NewFile(uintptr(fd), path), nil
}

// Statfs describes the file system that the root is on.
func (r *Root) Statfs() (unix.Statfs_t, error) {
	var st unix.Statfs_t
	err := unix.Fstatfs(r.fd, &st)
	return st, r.fail("statfs", ".", err)
}

// OpenDir opens a directory, following links within the root.
func (r *Root) OpenDir(path string) (*Dir, error) {
	fd, err := r.openat(path, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, r.fail("open directory", path, err)
	}
	return &Dir{fd: fd, path: path}, nil
}

// Parent opens the directory that a path's last component is in, and returns
// that component. The component need not exist and is not followed.
func (r *Root) Parent(path string) (*Dir, string, error) {
	parent, base, err := split(path)
	if err != nil {
		return nil, "", r.fail("resolve", path, err)
	}
	d, err := r.OpenDir(parent)
	return d, base, err
}

// MkdirAll makes a directory and its missing parents, with just that mode. Links within the root
// are followed, but nothing is created through a dangling one.
func (r *Root) MkdirAll(path string, mode uint32) error {
	d, _, err := r.EnsureDir(path, mode)
	if err != nil {
		return err
	}
	return d.Close()
}

// EnsureDir is MkdirAll that returns the directory opened and the paths that it made,
// outermost first. Its time is linear in the number of a path's components, but for a logarithm.
func (r *Root) EnsureDir(path string, mode uint32) (*Dir, []string, error) {
	d, err := r.OpenDir(path)
	if err == nil || !errors.Is(err, unix.ENOENT) {
		return d, nil, err
	}
	d, missing, err := r.deepest(path)
	if err != nil {
		return nil, nil, err
	}
	var made []string
	for i := len(missing) - 1; i >= 0; i-- {
		sub, isNew, err := d.ensure(missing[i], mode)
		d.Close()
		if isNew {
			made = append(made, missing[i])
		}
		if err != nil {
			return nil, made, err
		}
		d = sub
	}
	return d, made, nil
}

// deepest opens the deepest directory on the way to a path that does not exist, and returns the
// paths below it that are missing, longest first. It searches by halves: most often only the last
// component is missing, but to try the parents of a path with a thousand components one after the
// other would be a million lookups.
func (r *Root) deepest(path string) (d *Dir, missing []string, err error) {
	var parents []string
	for at := path; ; {
		parent, _, err := split(at)
		if err != nil {
			return nil, nil, r.fail("mkdir", path, err)
		}
		missing = append(missing, at)
		if at = strings.TrimRight(parent, "/"); at == "" {
			parents = append(parents, parent[:min(1, len(parent))])
			break
		}
		parents = append(parents, at)
	}
	if d, err = r.OpenDir(parents[0]); err == nil || !errors.Is(err, unix.ENOENT) || len(parents) == 1 {
		return d, missing[:1], err
	}
	low, high := 1, len(parents)-1
	for low < high {
		middle := (low + high) / 2
		up, err := r.OpenDir(parents[middle])
		switch {
		case err == nil:
			up.Close()
			high = middle
		case errors.Is(err, unix.ENOENT):
			low = middle + 1
		default:
			return nil, nil, err
		}
	}
	d, err = r.OpenDir(parents[low])
	return d, missing[:low+1], err
}

// in runs one operation on the last component of a path.
func (r *Root) in(path string, do func(d *Dir, base string) error) error {
	d, base, err := r.Parent(path)
	if err != nil {
		return err
	}
	defer d.Close()
	return do(d, base)
}

// Mkdir makes one directory; the process' umask applies to mode.
func (r *Root) Mkdir(path string, mode uint32) error {
	return r.in(path, func(d *Dir, base string) error { return d.Mkdir(base, mode) })
}

// Symlink makes a symbolic link at path; target is stored as it is.
func (r *Root) Symlink(target, path string) error {
	return r.in(path, func(d *Dir, base string) error { return d.Symlink(target, base) })
}

// Link makes path a hard link to old, both inside the root.
func (r *Root) Link(old, path string) error {
	return r.in(old, func(from *Dir, name string) error {
		return r.in(path, func(d *Dir, base string) error { return d.Link(from, name, base) })
	})
}

// Rename moves old to path, both inside the root.
func (r *Root) Rename(old, path string) error {
	return r.in(old, func(from *Dir, name string) error {
		return r.in(path, func(d *Dir, base string) error { return from.Rename(name, d, base) })
	})
}

// Mknod makes a device, fifo or socket; mode includes the S_IF type.
func (r *Root) Mknod(path string, mode uint32, dev uint64) error {
	return r.in(path, func(d *Dir, base string) error { return d.Mknod(base, mode, dev) })
}

// Remove deletes a file or an empty directory.
func (r *Root) Remove(path string) error {
	return r.in(path, func(d *Dir, base string) error { return d.Remove(base) })
}

// RemoveAll deletes a path with everything in it; nothing there is success.
func (r *Root) RemoveAll(path string) error {
	err := r.in(path, func(d *Dir, base string) error { return d.RemoveAll(base) })
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

// Lstat describes a path's last component itself.
func (r *Root) Lstat(path string) (st unix.Stat_t, err error) {
	err = r.in(path, func(d *Dir, base string) (err error) {
		st, err = d.Lstat(base)
		return err
	})
	return st, err
}

// Readlink returns where a symbolic link points, as stored.
func (r *Root) Readlink(path string) (target string, err error) {
	err = r.in(path, func(d *Dir, base string) (err error) {
		target, err = d.Readlink(base)
		return err
	})
	return target, err
}

// Lchown sets owner and group; -1 leaves one as it is.
func (r *Root) Lchown(path string, uid, gid int) error {
	return r.in(path, func(d *Dir, base string) error { return d.Lchown(base, uid, gid) })
}

// Chmod sets the low 12 bits of the mode; it fails on a symbolic link.
func (r *Root) Chmod(path string, mode uint32) error {
	return r.in(path, func(d *Dir, base string) error { return d.Chmod(base, mode) })
}

// Utimes sets access and modification time; a zero time leaves one as it is.
func (r *Root) Utimes(path string, atime, mtime time.Time) error {
	return r.in(path, func(d *Dir, base string) error { return d.Utimes(base, atime, mtime) })
}

// Lsetxattr sets an extended attribute of the last component itself.
func (r *Root) Lsetxattr(path, attr string, value []byte) error {
	return r.in(path, func(d *Dir, base string) error { return d.Lsetxattr(base, attr, value) })
}

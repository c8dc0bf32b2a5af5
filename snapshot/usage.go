package snapshot

import (
	"context"
	"fmt"

	"golang.org/x/sys/unix"
)

// What a container makes must not fill the daemon's memory: bytes of paths still to be
// walked, levels that are walked at once instead when there is no room for more, and
// files with several names that are remembered.
const (
	maxPending = 16 << 20
	maxNested  = 64
	maxLinked  = 1 << 20
)

// maxRelPath is how long a path is let grow before the walk opens the directory at
// it and goes on from there; the kernel's limit is PATH_MAX.
const maxRelPath = 3800

// Usage adds up what the snapshot's writable layer takes on disk now. Files that
// come and go meanwhile may be counted or not, and of a tree that is made to be
// unwalkable (millions of directories in deeply nested ones) some may be left out.
func (s *Store) Usage(ctx context.Context, id string) (Usage, error) {
	snap, err := s.Get(id)
	if err != nil {
		return Usage{}, err
	}
	fd, err := unix.Open(snap.Upper, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return Usage{}, fmt.Errorf("usage of snapshot %s: %w", id, err)
	}
	defer unix.Close(fd)
	m := meter{ctx: ctx, maxPending: maxPending, maxLinked: maxLinked}
	if err := m.add(fd); err != nil {
		return Usage{}, fmt.Errorf("usage of snapshot %s: %w", id, err)
	}
	return m.total(), nil
}

// meter walks a directory tree that may change and is not to be trusted: by
// descriptors, following no link, staying on one file system, and with few
// descriptors however deep it is.
type meter struct {
	ctx    context.Context
	usage  Usage
	dev    uint64
	linked map[uint64]struct{} // inodes with several links, counted already
	shares int64               // of inodes with several links beyond those, in millionths

	maxPending, maxLinked int
	pending, nested       int
}

// whole is an inode in the unit of shares. Of a file with three names, each is counted
// as a third: a writable layer has all names of its files.
const whole = 1e6

func (m *meter) total() Usage {
	return Usage{Bytes: m.usage.Bytes, Inodes: m.usage.Inodes + (m.shares+whole/2)/whole}
}

// add counts the tree below fd, itself included.
func (m *meter) add(fd int) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	m.dev = st.Dev
	m.count(&st)
	return m.below(fd)
}

func (m *meter) count(st *unix.Stat_t) {
	if st.Mode&unix.S_IFMT != unix.S_IFDIR && st.Nlink > 1 {
		if _, seen := m.linked[st.Ino]; seen {
			return
		}
		if len(m.linked) >= m.maxLinked {
			names := int64(st.Nlink)
			m.usage.Bytes += st.Blocks * 512 / names
			m.shares += whole / names
			return
		}
		if m.linked == nil {
			m.linked = map[uint64]struct{}{}
		}
		m.linked[st.Ino] = struct{}{}
	}
	m.usage.Bytes += st.Blocks * 512
	m.usage.Inodes++
}

// below counts what is in the directory base, directories breadth after depth by
// their paths from base.
func (m *meter) below(base int) error {
	dirs := []string{"."}
	m.pending += len(dirs[0])
	for len(dirs) > 0 {
		if err := m.ctx.Err(); err != nil {
			return context.Cause(m.ctx)
		}
		dir := dirs[len(dirs)-1]
		dirs = dirs[:len(dirs)-1]
		m.pending -= len(dir)
		fd, err := openDir(base, dir)
		if gone(err) {
			continue
		}
		if err != nil {
			return err
		}
		if len(dir) > maxRelPath {
			err = m.below(fd)
		} else {
			dirs, err = m.list(fd, dir, dirs)
		}
		_ = unix.Close(fd)
		if err != nil {
			return err
		}
	}
	return nil
}

// list counts the entries of one directory and appends its directories to dirs.
func (m *meter) list(fd int, dir string, dirs []string) ([]string, error) {
	err := eachEntry(fd, func(name string) error {
		var st unix.Stat_t
		err := unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW)
		if gone(err) {
			return nil
		}
		if err != nil {
			return err
		}
		if st.Dev != m.dev {
			return nil
		}
		m.count(&st)
		if st.Mode&unix.S_IFMT != unix.S_IFDIR {
			return nil
		}
		path := dir + "/" + name
		if m.pending+len(path) > m.maxPending {
			return m.now(fd, name)
		}
		m.pending += len(path)
		dirs = append(dirs, path)
		return nil
	})
	if gone(err) {
		err = nil
	}
	return dirs, err
}

// now counts what is in a directory that there is no room to remember.
func (m *meter) now(parent int, name string) error {
	if m.nested >= maxNested {
		return nil
	}
	fd, err := openDir(parent, name)
	if gone(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	m.nested++
	defer func() { m.nested-- }()
	return m.below(fd)
}

// openDir opens a directory below base, through no link and no mount.
func openDir(base int, path string) (int, error) {
	return unix.Openat2(base, path, &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV,
	})
}

// gone reports that a path changed under the walk, or left the file system.
func gone(err error) bool {
	switch err {
	case unix.ENOENT, unix.ENOTDIR, unix.ELOOP, unix.EXDEV, unix.EAGAIN:
		return true
	}
	return false
}

// Package treewalk walks directory trees that containers make, and says what they take on disk.
// Such trees may be deeper than any path is long, wider than memory, and change meanwhile: the walk
// goes by descriptors, follows no link, stays on one file system, and holds few descriptors
// and little memory whatever it meets. What comes and goes meanwhile is found or not.
package treewalk

import (
	"context"
	"strings"

	"golang.org/x/sys/unix"
)

// What a walk holds at most: bytes of paths still to be walked, levels that are walked at once
// instead when there is no room for more, and files with several names that are remembered.
const (
	maxPending = 16 << 20
	maxNested  = 64
	maxLinked  = 1 << 20
)

// maxRelPath is how long a path is let grow before the walk opens the directory at it and goes on
// from there: the way back, as many times "../", must be within PATH_MAX. The directories that it
// goes on from stay open, the first maxHeld of them; what is still deeper has that way only.
const (
	maxRelPath = 1000
	maxHeld    = 64
)

// maxDir is how long Found.Dir gets.
const maxDir = 1024

// Found is one file of a tree.
type Found struct {
	// Dir is the directory that the file is in, from the tree's root, which is "". It is not
	// longer than some thousand bytes: what is deeper goes by the beginning.
	Dir string
	// Name is the file's; "" for the root itself.
	Name string
	Size
}

// Size is what files take on disk.
type Size struct {
	Bytes int64 // allocated
	// parts are inodes in millionths. Of a file with several names that there was no room to
	// remember each name is a part: a tree has all names of its files, mostly.
	parts int64
}

const whole = 1e6

// Inodes is a number of files.
func (s Size) Inodes() int64 { return (s.parts + whole/2) / whole }

// Add adds up.
func (s *Size) Add(t Size) {
	s.Bytes += t.Bytes
	s.parts += t.parts
}

// Sum adds up the tree below an open directory, itself included.
func Sum(ctx context.Context, root int) (total Size, err error) {
	err = Walk(ctx, root, func(f Found) { total.Add(f.Size) })
	return total, err
}

// Walk reports everything in the tree below an open directory, itself included. Files
// with several names are reported once, or by parts. Of a tree that is made to be unwalkable
// (millions of directories in deeply nested ones) some may be left out.
func Walk(ctx context.Context, root int, report func(Found)) error {
	w := walker{ctx: ctx, report: report, maxPending: maxPending, maxLinked: maxLinked, maxHeld: maxHeld}
	return w.walk(root)
}

type walker struct {
	ctx    context.Context // of the one walk
	report func(Found)
	device uint64
	linked map[uint64]struct{} // inodes with several names, reported already

	maxPending, maxLinked, maxHeld int
	pending, nested, held          int
}

func (w *walker) walk(root int) error {
	var st unix.Stat_t
	if err := unix.Fstat(root, &st); err != nil {
		return err
	}
	w.device = st.Dev
	w.found("", "", &st)
	_, err := w.below(root, "")
	return err
}

func (w *walker) found(dir, name string, st *unix.Stat_t) {
	if s, isNew := w.size(st); isNew {
		w.report(Found{dir, name, s})
	}
}

// size is the share of one name of a file.
func (w *walker) size(st *unix.Stat_t) (s Size, isNew bool) {
	s = Size{st.Blocks * 512, whole}
	if isDir(st) || st.Nlink <= 1 {
		return s, true
	}
	if _, seen := w.linked[st.Ino]; seen {
		return s, false
	}
	if len(w.linked) >= w.maxLinked {
		names := int64(st.Nlink)
		return Size{s.Bytes / names, whole / names}, true
	}
	if w.linked == nil {
		w.linked = map[uint64]struct{}{}
	}
	w.linked[st.Ino] = struct{}{}
	return s, true
}

func isDir(st *unix.Stat_t) bool { return st.Mode&unix.S_IFMT == unix.S_IFDIR }

// below walks what is in the directory base, which is called at, directories breadth after
// depth by their paths from base. It returns a descriptor of base, which may be another one
// than it was given, or -1 if there is no way back to it.
func (w *walker) below(base int, at string) (int, error) {
	dirs := []string{"."}
	w.pending += len(dirs[0])
	for len(dirs) > 0 {
		if w.ctx.Err() != nil {
			return base, context.Cause(w.ctx)
		}
		dir := dirs[len(dirs)-1]
		dirs = dirs[:len(dirs)-1]
		w.pending -= len(dir)
		fd, err := OpenDir(base, dir)
		if Gone(err) {
			continue
		}
		if err != nil {
			return base, err
		}
		if len(dir) > maxRelPath {
			base, err = w.deeper(base, at, fd, dir)
		} else {
			dirs, err = w.list(fd, at, dir, dirs)
			_ = unix.Close(fd)
		}
		if err != nil {
			return base, err
		}
		if base < 0 {
			for _, dir := range dirs {
				w.pending -= len(dir)
			}
			return -1, nil
		}
	}
	return base, nil
}

// list reports the entries of one directory and appends its directories to dirs.
func (w *walker) list(fd int, at, dir string, dirs []string) ([]string, error) {
	where := join(at, dir)
	err := EachEntry(fd, func(name string) error {
		var st unix.Stat_t
		err := unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW)
		if Gone(err) {
			return nil
		}
		if err != nil {
			return err
		}
		if st.Dev != w.device {
			return nil // a mount
		}
		w.found(where, name, &st)
		if !isDir(&st) {
			return nil
		}
		path := dir + "/" + name
		if w.pending+len(path) > w.maxPending {
			return w.now(fd, name, join(at, path))
		}
		w.pending += len(path)
		dirs = append(dirs, path)
		return nil
	})
	if Gone(err) {
		err = nil
	}
	return dirs, err
}

// now walks a directory that there is no room to remember.
func (w *walker) now(parent int, name, at string) error {
	if w.nested >= maxNested {
		return nil
	}
	fd, err := OpenDir(parent, name)
	if Gone(err) {
		return nil
	}
	if err != nil {
		return err
	}
	w.nested++
	defer func() { w.nested-- }()
	return w.closing(fd, at)
}

// closing walks below a directory, and closes it.
func (w *walker) closing(fd int, at string) error {
	fd, err := w.below(fd, at)
	if fd >= 0 {
		_ = unix.Close(fd)
	}
	return err
}

// deeper walks below a directory fd that is far below base, and returns base as below does.
func (w *walker) deeper(base int, at string, fd int, dir string) (int, error) {
	if w.held < w.maxHeld {
		w.held++
		defer func() { w.held-- }()
		return base, w.closing(fd, join(at, dir))
	}
	var was unix.Stat_t
	err := unix.Fstat(base, &was)
	_ = unix.Close(base)
	if err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	fd, err = w.below(fd, join(at, dir))
	if fd < 0 || err != nil {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
		return -1, err
	}
	return climb(fd, strings.Count(dir, "/"), &was)
}

// climb goes some directories up, closing the one it starts at. Where that does not lead to the
// directory that it was, because someone has moved what is between, it returns -1.
func climb(fd, levels int, was *unix.Stat_t) (int, error) {
	up, err := unix.Openat(fd, strings.Repeat("../", levels), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	_ = unix.Close(fd)
	if Gone(err) {
		return -1, nil
	}
	if err != nil {
		return -1, err
	}
	var is unix.Stat_t
	err = unix.Fstat(up, &is)
	if err != nil || is.Ino != was.Ino || is.Dev != was.Dev {
		_ = unix.Close(up)
		return -1, err
	}
	return up, nil
}

// join is the name of a directory, as far as it is told. dir starts with ".".
func join(at, dir string) string {
	if len(at) >= maxDir {
		return at
	}
	name := at + dir[1:]
	if at == "" && name != "" {
		name = name[1:]
	}
	return strings.Clone(name[:min(len(name), maxDir)])
}

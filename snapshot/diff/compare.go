package diff

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/internal/treewalk"
)

// Compared writes how a directory differs from what layers show; top is what it began
// with. Files that look the same
// are read and compared: a program can set any time.
func (w *Writer) Compared(ctx context.Context, dir, top string, layers []string) error {
	layerStack, err := openStack(layers, w.room)
	if err != nil {
		return err
	}
	defer layerStack.close()
	base, err := layerStack.top()
	if err != nil {
		return err
	}
	defer base.close()
	fd, err := w.beginRoot(dir, top)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return w.comparedDir(ctx, fd, base, "", 0)
}

func (w *Writer) comparedDir(ctx context.Context, fd int, base *merged, dir string, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("%w: directories nest deeper than %d levels", ErrInvalid, maxDepth)
	}
	nodes, took, err := base.list()
	defer w.room.give(took)
	if err != nil {
		return fmt.Errorf("list %q: %w", dir, err)
	}
	was := make(map[string]*node, len(nodes))
	for _, n := range nodes {
		was[n.name] = n
	}
	names, took, err := w.room.sortedNames(fd)
	defer w.room.give(took)
	if err != nil {
		return fmt.Errorf("list %q: %w", dir, err)
	}
	is := make(map[string]bool, len(names))
	for _, name := range names {
		is[name] = true
	}
	for _, n := range nodes {
		if !is[n.name] {
			if err := w.whiteout(path.Join(dir, n.name)); err != nil {
				return err
			}
		}
	}
	for _, name := range names {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		if err := w.comparedEntry(ctx, fd, name, was[name], path.Join(dir, name), depth); err != nil {
			return err
		}
	}
	return nil
}

func (w *Writer) comparedEntry(ctx context.Context, fd int, name string, was *node, rel string, depth int) error {
	var st unix.Stat_t
	err := unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW)
	if treewalk.Gone(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("stat %q: %w", rel, err)
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return w.comparedSubdir(ctx, fd, name, &st, was, rel, depth)
	}
	if was != nil {
		same, err := w.same(fd, name, &st, was)
		if err != nil {
			return fmt.Errorf("compare %q: %w", rel, err)
		}
		if same {
			return nil
		}
	}
	return w.entry(fd, name, rel, &st)
}

func (w *Writer) comparedSubdir(ctx context.Context, fd int, name string, st *unix.Stat_t, was *node, rel string, depth int) error {
	var base *merged
	sub, err := treewalk.OpenDir(fd, name)
	if treewalk.Gone(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open %q: %w", rel, err)
	}
	defer unix.Close(sub)
	changed := was == nil || !was.isDir()
	if !changed {
		same, err := sameAttributes(fd, name, st, was)
		if err != nil {
			return fmt.Errorf("compare %q: %w", rel, err)
		}
		changed = !same
		if base, err = was.enter(); err != nil {
			return err
		}
		defer base.close()
	}
	if changed {
		if err := w.entry(fd, name, rel, st); err != nil {
			return err
		}
		return w.comparedDir(ctx, sub, base, rel, depth+1)
	}
	h, err := header(fd, name, rel, st)
	if err != nil {
		return fmt.Errorf("read %q: %w", rel, err)
	}
	w.parents = append(w.parents, pendingDir{rel, h})
	if err := w.comparedDir(ctx, sub, base, rel, depth+1); err != nil {
		return err
	}
	if n := len(w.parents); n > 0 && w.parents[n-1].name == rel {
		w.parents = w.parents[:n-1] // nothing in it has changed
	}
	return nil
}

// same says whether a file is the layers' one.
func (w *Writer) same(fd int, name string, st *unix.Stat_t, was *node) (bool, error) {
	if st.Size != was.stat.Size || st.Rdev != was.stat.Rdev {
		return false, nil
	}
	same, err := sameAttributes(fd, name, st, was)
	if !same || err != nil {
		return false, err
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		return w.sameContent(fd, name, was)
	case unix.S_IFLNK:
		now, err := readlink(fd, name)
		if err != nil {
			return false, err
		}
		then, err := was.readlink()
		return now == then, err
	}
	return true, nil
}

func sameAttributes(fd int, name string, st *unix.Stat_t, was *node) (bool, error) {
	if st.Mode != was.stat.Mode || st.Uid != was.stat.Uid || st.Gid != was.stat.Gid || st.Mtim != was.stat.Mtim {
		return false, nil
	}
	now, err := keptXattrs(fd, name)
	if err != nil {
		return false, err
	}
	then, err := was.xattrs()
	return maps.Equal(now, then), err
}

// sameContent compares two files of the same size.
func (w *Writer) sameContent(fd int, name string, was *node) (bool, error) {
	now, err := openRegular(fd, name)
	if err != nil {
		return false, err
	}
	defer now.Close()
	then, err := was.openRegular()
	if err != nil {
		return false, err
	}
	defer then.Close()
	half := len(w.buf) / 2
	a, b := w.buf[:half], w.buf[half:]
	for {
		n, err := io.ReadFull(now, a)
		m, err2 := io.ReadFull(then, b)
		if n != m || !bytes.Equal(a[:n], b[:m]) {
			return false, nil
		}
		if ended(err) && ended(err2) {
			return true, nil
		}
		if err := errors.Join(err, err2); err != nil {
			return false, err
		}
	}
}

func ended(err error) bool { return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) }

package diff

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/internal/safepath"
)

// copier copies what a stack of layers shows into a directory.
type copier struct {
	ctx   context.Context
	root  *safepath.Root // of the copy
	links map[Inode]string
	room  *room
	buf   []byte
}

// CopyLayers makes the directory to, which must be empty, show what the layers do; it
// looks as top does.
func CopyLayers(ctx context.Context, layers []string, top, to string) error {
	root, err := safepath.Open(to)
	if err != nil {
		return err
	}
	defer root.Close()
	c := &copier{ctx: ctx, root: root.Strict(), links: map[Inode]string{}, room: newRoom(), buf: make([]byte, 128<<10)}
	layerStack, err := openStack(layers, c.room)
	if err != nil {
		return err
	}
	defer layerStack.close()
	m, err := layerStack.top()
	if err != nil {
		return err
	}
	defer m.close()
	d, err := c.root.OpenDir("")
	if err != nil {
		return err
	}
	defer d.Close()
	if err := c.tree(m, d, "", 0); err != nil {
		return err
	}
	return LikeRoot(to, top)
}

// tree copies the content of one directory.
func (c *copier) tree(m *merged, to *safepath.Dir, dir string, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("%w: directories nest deeper than %d levels", ErrInvalid, maxDepth)
	}
	nodes, took, err := m.list()
	defer c.room.give(took)
	if err != nil {
		return fmt.Errorf("list %q: %w", dir, err)
	}
	for _, n := range nodes {
		if err := c.ctx.Err(); err != nil {
			return context.Cause(c.ctx)
		}
		if err := c.node(n, to, path.Join(dir, n.name), depth); err != nil {
			return fmt.Errorf("copy %q: %w", path.Join(dir, n.name), err)
		}
	}
	return nil
}

func (c *copier) node(n *node, to *safepath.Dir, rel string, depth int) error {
	if n.isDir() {
		return c.directory(n, to, rel, depth)
	}
	if n.stat.Nlink > 1 {
		if first, ok := c.links[InodeOf(&n.stat)]; ok {
			from, base, err := c.root.Parent(first)
			if err != nil {
				return err
			}
			defer from.Close()
			return to.Link(from, base, n.name)
		}
		if err := c.room.take(len(rel) + nameCost); err != nil {
			return err
		}
		c.links[InodeOf(&n.stat)] = rel
	}
	switch n.stat.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		if err := c.file(n, to); err != nil {
			return err
		}
	case unix.S_IFLNK:
		target, err := n.readlink()
		if err != nil {
			return err
		}
		if err := to.Symlink(target, n.name); err != nil {
			return err
		}
	default:
		if err := to.Mknod(n.name, n.stat.Mode&unix.S_IFMT|0o600, n.stat.Rdev); err != nil {
			return err
		}
	}
	return c.attributes(n, to)
}

func (c *copier) directory(n *node, to *safepath.Dir, rel string, depth int) error {
	if err := to.Mkdir(n.name, 0o700); err != nil {
		return err
	}
	sub, err := to.OpenDir(n.name)
	if err != nil {
		return err
	}
	defer sub.Close()
	m, err := n.enter()
	if err != nil {
		return err
	}
	defer m.close()
	if err := c.tree(m, sub, rel, depth+1); err != nil {
		return err
	}
	return c.attributes(n, to)
}

// attributes sets what the kernel would change with the content, in the order in which
// none undoes another: chown clears set-uid bits and capabilities.
func (c *copier) attributes(n *node, to *safepath.Dir) error {
	if err := to.Lchown(n.name, int(n.stat.Uid), int(n.stat.Gid)); err != nil {
		return err
	}
	attrs, err := n.xattrs()
	if err != nil {
		return err
	}
	for attr, value := range attrs {
		err := to.Lsetxattr(n.name, attr, []byte(value))
		if err != nil && (!strings.HasPrefix(attr, "user.") || !errors.Is(err, unix.ENOTSUP)) {
			return err
		}
	}
	if n.stat.Mode&unix.S_IFMT != unix.S_IFLNK {
		if err := to.Chmod(n.name, n.stat.Mode); err != nil {
			return err
		}
	}
	return to.Utimes(n.name, time.Unix(n.stat.Atim.Unix()), time.Unix(n.stat.Mtim.Unix()))
}

// file copies a regular file: as a second reference to its blocks where the file system
// can (btrfs, xfs), otherwise its bytes, with its holes.
func (c *copier) file(n *node, to *safepath.Dir) error {
	in, err := n.openRegular()
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := to.Create(n.name, 0o600)
	if err != nil {
		return err
	}
	defer out.Close()
	if unix.IoctlFileClone(int(out.Fd()), int(in.Fd())) == nil {
		return out.Close()
	}
	if err := c.extents(in, out, n.stat.Size); err != nil {
		return err
	}
	return out.Close()
}

// extents copies what is not a hole.
func (c *copier) extents(in, out *os.File, size int64) error {
	for at := int64(0); at < size; {
		begin, err := in.Seek(at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			break // nothing but a hole is left
		}
		if err != nil {
			return err
		}
		end, err := in.Seek(begin, unix.SEEK_HOLE)
		if err != nil {
			return err
		}
		section := io.NewSectionReader(in, begin, end-begin)
		if _, err := io.CopyBuffer(struct{ io.Writer }{io.NewOffsetWriter(out, begin)}, struct{ io.Reader }{section}, c.buf); err != nil {
			return err
		}
		at = end
	}
	return out.Truncate(size)
}

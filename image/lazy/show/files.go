// Package show mounts a layer's tree with FUSE, and goes on with a mount that another process has
// made: a file system that keeps nothing about its clients. Files are known by their number in the
// tree, are not opened and not forgotten, and so any process with the connection can answer.
package show

import (
	"context"
	"slices"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/image/lazy/toc"
)

// forever is how long the kernel may keep what it was told: layers do not change.
const forever = 365 * 24 * time.Hour

// Contents reads files.
type Contents interface {
	// ReadAt reads a regular file as io.ReaderAt does, but no further than its end. ctx ends when
	// the reader is killed. Whatever error it returns the reader gets to see as EIO.
	ReadAt(ctx context.Context, n *toc.Node, p []byte, at int64) (int, error)
}

// files is a tree as a FUSE file system. What it has no method for, the kernel is told not to
// exist.
type files struct {
	fuse.RawFileSystem
	tree     *toc.Tree
	contents Contents
}

func (f *files) String() string { return "coracle-lazy" }

func (f *files) fill(id uint64, out *fuse.Attr) {
	n := f.tree.Node(id)
	*out = fuse.Attr{
		Ino: id, Size: uint64(n.Size), Blocks: uint64(n.Size+511) / 512, Blksize: 4096, Mode: n.Mode, Nlink: n.Nlink,
		Owner: fuse.Owner{Uid: n.UID, Gid: n.GID}, Rdev: uint32(unix.Mkdev(n.Major, n.Minor)),
	}
	if !n.Time.IsZero() {
		out.SetTimes(&n.Time, &n.Time, &n.Time)
	}
}

func (f *files) entry(id uint64, out *fuse.EntryOut) {
	out.NodeId, out.Generation = id, 1
	f.fill(id, &out.Attr)
	out.SetEntryTimeout(forever)
	out.SetAttrTimeout(forever)
}

func (f *files) Lookup(_ <-chan struct{}, h *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	n := f.tree.Node(h.NodeId)
	if n == nil {
		return fuse.ENOENT
	}
	id, ok := n.Lookup(name)
	if !ok {
		out.SetEntryTimeout(forever) // a node 0: that the name is not there may be kept, too
		return fuse.OK
	}
	f.entry(id, out)
	return fuse.OK
}

func (f *files) GetAttr(_ <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	if f.tree.Node(in.NodeId) == nil {
		return fuse.ENOENT
	}
	f.fill(in.NodeId, &out.Attr)
	out.SetTimeout(forever)
	return fuse.OK
}

func (f *files) Readlink(_ <-chan struct{}, h *fuse.InHeader) ([]byte, fuse.Status) {
	n := f.tree.Node(h.NodeId)
	if n == nil || n.Link == "" {
		return nil, fuse.EINVAL
	}
	return []byte(n.Link), fuse.OK
}

// Open and OpenDir say that files need not be opened (FUSE_NO_OPEN_SUPPORT): the kernel then
// keeps what it has read of them.
func (f *files) Open(<-chan struct{}, *fuse.OpenIn, *fuse.OpenOut) fuse.Status { return fuse.ENOSYS }

func (f *files) OpenDir(<-chan struct{}, *fuse.OpenIn, *fuse.OpenOut) fuse.Status { return fuse.ENOSYS }

// each calls yield for what a directory has from an offset on, until that has no more room. The
// first two entries are the directory itself and its parent.
func (f *files) each(in *fuse.ReadIn, yield func(e fuse.DirEntry, child bool) bool) fuse.Status {
	n := f.tree.Node(in.NodeId)
	if n == nil || n.Mode&unix.S_IFMT != unix.S_IFDIR {
		return fuse.ENOTDIR
	}
	for i := in.Offset; i < uint64(len(n.Entries))+2; i++ {
		e := fuse.DirEntry{Mode: unix.S_IFDIR, Off: i + 1}
		switch i {
		case 0:
			e.Name, e.Ino = ".", in.NodeId
		case 1:
			e.Name, e.Ino = "..", n.Parent
		default:
			entry := n.Entries[i-2]
			e.Name, e.Ino, e.Mode = entry.Name, entry.Node, f.tree.Node(entry.Node).Mode
		}
		if !yield(e, i > 1) {
			break
		}
	}
	return fuse.OK
}

func (f *files) ReadDir(_ <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	return f.each(in, func(e fuse.DirEntry, _ bool) bool { return out.AddDirEntry(e) })
}

func (f *files) ReadDirPlus(_ <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	return f.each(in, func(e fuse.DirEntry, child bool) bool {
		to := out.AddDirLookupEntry(e)
		if to == nil {
			return false
		}
		if child {
			f.entry(e.Ino, to)
		}
		return true
	})
}

func (f *files) Read(cancel <-chan struct{}, in *fuse.ReadIn, buf []byte) (fuse.ReadResult, fuse.Status) {
	n := f.tree.Node(in.NodeId)
	if n == nil || n.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, fuse.EINVAL
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	defer whenClosed(cancel, stop)()
	got, err := f.contents.ReadAt(ctx, n, buf, int64(in.Offset))
	switch {
	case ctx.Err() != nil:
		return nil, fuse.EINTR
	case err != nil:
		return nil, fuse.EIO
	}
	return fuse.ReadResultData(buf[:got]), fuse.OK
}

// whenClosed calls do when c is closed, until the function that it returns is called.
func whenClosed(c <-chan struct{}, do func()) (stop func()) {
	done := make(chan struct{})
	go func() {
		select {
		case <-c:
			do()
		case <-done:
		}
	}()
	return func() { close(done) }
}

func (f *files) GetXAttr(_ <-chan struct{}, h *fuse.InHeader, name string, to []byte) (uint32, fuse.Status) {
	n := f.tree.Node(h.NodeId)
	if n == nil {
		return 0, fuse.ENOENT
	}
	value, ok := n.Xattrs[name]
	if !ok {
		return 0, fuse.ENOATTR
	}
	return answer(value, to)
}

func (f *files) ListXAttr(_ <-chan struct{}, h *fuse.InHeader, to []byte) (uint32, fuse.Status) {
	n := f.tree.Node(h.NodeId)
	if n == nil {
		return 0, fuse.ENOENT
	}
	var names []string
	for name := range n.Xattrs {
		names = append(names, name)
	}
	slices.Sort(names)
	var list []byte
	for _, name := range names {
		list = append(append(list, name...), 0)
	}
	return answer(list, to)
}

// answer is what getxattr(2) wants: the size if there is no room for anything.
func answer(value, to []byte) (uint32, fuse.Status) {
	if len(to) > 0 && len(to) < len(value) {
		return uint32(len(value)), fuse.Status(syscall.ERANGE)
	}
	copy(to, value)
	return uint32(len(value)), fuse.OK
}

func (f *files) StatFs(_ <-chan struct{}, _ *fuse.InHeader, out *fuse.StatfsOut) fuse.Status {
	*out = fuse.StatfsOut{Bsize: 4096, Frsize: 4096, NameLen: unix.NAME_MAX, Files: uint64(f.tree.Nodes())}
	return fuse.OK
}

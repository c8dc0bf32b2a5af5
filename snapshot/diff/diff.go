// Package diff compares directories with the layers that they began with, and copies what a stack
// of layers shows. Differences are written as the archive of an OCI layer. All input is hostile:
// containers choose names, depths and attributes.
package diff

import (
	"archive/tar"
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
	"github.com/coracle-project/coracle/internal/treewalk"
)

// Kinds of error, for errors.Is.
var (
	ErrInvalid     = errors.New("invalid argument")
	ErrUnsupported = errors.New("not supported here")
)

// FilesDir is the directory of a layer that holds its files.
const FilesDir = "fs"

const (
	whiteoutPrefix = ".wh."
	opaqueFile     = ".wh..wh..opq"
	opaqueXattr    = "trusted.overlay.opaque"
	xattrRecord    = "SCHILY.xattr." // PAX key of an extended attribute
)

// maxDepth is how deep directories of an archive may nest. The path of a deeper one is
// longer than PATH_MAX with names of two letters, and could not be unpacked.
const maxDepth = 1365

// Inode names a file across directories.
type Inode struct{ dev, ino uint64 }

// InodeOf is the inode that st is of.
func InodeOf(st *unix.Stat_t) Inode { return Inode{st.Dev, st.Ino} }

// Writer writes an archive of changes.
type Writer struct {
	tar   *tar.Writer
	links map[Inode]string // first names of files with several
	room  *room
	buf   []byte
	// parents are the directories on the way to the next entry that are not
	// written yet, outermost first. A layer that lists a file but not its directory
	// would give that another owner and mode.
	parents []pendingDir
}

// NewWriter returns a writer of one archive; Close ends it.
func NewWriter(to io.Writer) *Writer {
	return &Writer{tar: tar.NewWriter(to), links: map[Inode]string{}, room: newRoom(), buf: make([]byte, 128<<10)}
}

// Close writes the end of the archive.
func (w *Writer) Close() error { return w.tar.Close() }

type pendingDir struct {
	name string
	dir  *tar.Header
}

// Upper writes the upper directory of an overlay, whose whiteouts and opaque directories
// are the kernel's. top is the directory that shows where upper does not.
func (w *Writer) Upper(ctx context.Context, upper, top string) error {
	fd, err := w.beginRoot(upper, top)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return w.upperDir(ctx, fd, "", 0)
}

// beginRoot opens a root, which the caller closes, and writes it if it does not look as top does.
func (w *Writer) beginRoot(dir, top string) (fd int, err error) {
	fd, err = OpenRoot(dir)
	if err != nil {
		return -1, err
	}
	changed, err := rootChanged(fd, top)
	if err == nil && changed {
		err = w.root(fd)
	}
	if err != nil {
		return -1, errors.Join(err, unix.Close(fd))
	}
	return fd, nil
}

// OpenRoot opens a directory that is no symbolic link.
func OpenRoot(dir string) (int, error) {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, &os.PathError{Op: "open", Path: dir, Err: err}
	}
	return fd, nil
}

// root writes an entry for the root directory itself.
func (w *Writer) root(fd int) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	h, err := header(fd, ".", "./", &st)
	if err != nil {
		return err
	}
	return w.tar.WriteHeader(h)
}

func (w *Writer) upperDir(ctx context.Context, fd int, dir string, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("%w: directories nest deeper than %d levels", ErrInvalid, maxDepth)
	}
	names, took, err := w.room.sortedNames(fd)
	defer w.room.give(took)
	if err != nil {
		return fmt.Errorf("list %q: %w", dir, err)
	}
	for _, name := range names {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		if err := w.upperEntry(ctx, fd, name, path.Join(dir, name), depth); err != nil {
			return err
		}
	}
	return nil
}

func (w *Writer) upperEntry(ctx context.Context, fd int, name, rel string, depth int) error {
	var st unix.Stat_t
	err := unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW)
	if treewalk.Gone(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("stat %q: %w", rel, err)
	}
	if st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == 0 {
		return w.whiteout(rel)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return w.entry(fd, name, rel, &st)
	}
	sub, err := treewalk.OpenDir(fd, name)
	if treewalk.Gone(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open %q: %w", rel, err)
	}
	defer unix.Close(sub)
	if err := w.entry(fd, name, rel, &st); err != nil {
		return err
	}
	opaque, err := isOpaque(sub)
	if err != nil {
		return fmt.Errorf("directory %q: %w", rel, err)
	}
	if opaque {
		if err := w.marker(path.Join(rel, opaqueFile)); err != nil {
			return err
		}
	}
	return w.upperDir(ctx, sub, rel, depth+1)
}

// isOpaque says whether a directory hides those beneath, and refuses one whose content is
// elsewhere, as overlays mounted by others have them (redirect_dir, metacopy).
func isOpaque(fd int) (bool, error) {
	buf := make([]byte, 16)
	if _, err := unix.Fgetxattr(fd, "trusted.overlay.redirect", nil); err == nil {
		return false, fmt.Errorf("%w: its content is redirected, so that its changes cannot be told without its layers", ErrUnsupported)
	}
	n, err := unix.Fgetxattr(fd, opaqueXattr, buf)
	if err != nil {
		if err == unix.ENODATA || err == unix.ENOTSUP || err == unix.ERANGE {
			return false, nil
		}
		return false, err
	}
	return string(buf[:n]) == "y", nil
}

// whiteout says that a name is gone.
func (w *Writer) whiteout(rel string) error {
	return w.marker(path.Join(path.Dir(rel), whiteoutPrefix+path.Base(rel)))
}

func (w *Writer) marker(rel string) error {
	if err := w.writeParents(); err != nil {
		return err
	}
	return w.tar.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: rel, Mode: 0o600, ModTime: time.Unix(0, 0), Format: tar.FormatPAX})
}

// entry writes one file or directory, without what is in a directory.
func (w *Writer) entry(fd int, name, rel string, st *unix.Stat_t) error {
	if st.Mode&unix.S_IFMT == unix.S_IFSOCK {
		return nil
	}
	if strings.HasPrefix(name, whiteoutPrefix) {
		return fmt.Errorf("%w: %q begins with %q, which images take for a deletion; rename or remove it", ErrInvalid, rel, whiteoutPrefix)
	}
	if err := w.writeParents(); err != nil {
		return err
	}
	h, err := header(fd, name, rel, st)
	if treewalk.Gone(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read %q: %w", rel, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR && st.Nlink > 1 {
		if first, ok := w.links[InodeOf(st)]; ok {
			return w.tar.WriteHeader(&tar.Header{
				Typeflag: tar.TypeLink, Name: rel, Linkname: first, Mode: h.Mode, Uid: h.Uid, Gid: h.Gid,
				ModTime: h.ModTime, Format: tar.FormatPAX,
			})
		}
		if err := w.room.take(len(rel) + nameCost); err != nil {
			return err
		}
		w.links[InodeOf(st)] = rel
	}
	if h.Typeflag != tar.TypeReg {
		return w.tar.WriteHeader(h)
	}
	return w.file(fd, name, h)
}

func (w *Writer) writeParents() error {
	for _, p := range w.parents {
		if err := w.tar.WriteHeader(p.dir); err != nil {
			return err
		}
	}
	w.parents = w.parents[:0]
	return nil
}

// file writes a regular file in the length that its header says, whatever becomes of it.
func (w *Writer) file(dir int, name string, h *tar.Header) error {
	f, err := openRegular(dir, name)
	if err != nil {
		return fmt.Errorf("open %q: %w", h.Name, err)
	}
	defer f.Close()
	if err := w.tar.WriteHeader(h); err != nil {
		return err
	}
	n, err := io.CopyBuffer(struct{ io.Writer }{w.tar}, io.LimitReader(f, h.Size), w.buf)
	if err != nil {
		return fmt.Errorf("read %q: %w", h.Name, err)
	}
	clear(w.buf)
	for n < h.Size {
		k, err := w.tar.Write(w.buf[:min(int64(len(w.buf)), h.Size-n)])
		if err != nil {
			return err
		}
		n += int64(k)
	}
	return nil
}

// openRegular opens a file that stat said is regular: not a link or a FIFO that took its
// place since.
func openRegular(dir int, name string) (*os.File, error) {
	f, err := safepath.OpenRegularAt(dir, name)
	if errors.Is(err, safepath.ErrNotRegular) {
		return nil, errors.New("is not a regular file any more")
	}
	return f, err
}

// header describes an entry of a directory.
func header(dir int, name, rel string, st *unix.Stat_t) (*tar.Header, error) {
	h := &tar.Header{
		Name: rel, Mode: int64(st.Mode & 0o7777), Uid: int(st.Uid), Gid: int(st.Gid),
		ModTime: time.Unix(st.Mtim.Unix()), Format: tar.FormatPAX, PAXRecords: map[string]string{},
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		h.Typeflag, h.Size = tar.TypeReg, st.Size
	case unix.S_IFDIR:
		h.Typeflag, h.Name = tar.TypeDir, strings.TrimSuffix(rel, "/")+"/"
	case unix.S_IFLNK:
		target, err := readlink(dir, name)
		if err != nil {
			return nil, err
		}
		h.Typeflag, h.Linkname = tar.TypeSymlink, target
	case unix.S_IFCHR, unix.S_IFBLK:
		h.Typeflag = tar.TypeChar
		if st.Mode&unix.S_IFMT == unix.S_IFBLK {
			h.Typeflag = tar.TypeBlock
		}
		h.Devmajor, h.Devminor = int64(unix.Major(st.Rdev)), int64(unix.Minor(st.Rdev))
	case unix.S_IFIFO:
		h.Typeflag = tar.TypeFifo
	}
	attrs, err := keptXattrs(dir, name)
	for attr, value := range attrs {
		h.PAXRecords[xattrRecord+attr] = value
	}
	return h, err
}

func readlink(dir int, name string) (string, error) {
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(dir, name, buf)
	return string(buf[:max(n, 0)]), err
}

// keptXattrs are the attributes of an entry that belong into an image.
func keptXattrs(dir int, name string) (map[string]string, error) {
	at := fmt.Sprintf("/proc/self/fd/%d/%s", dir, name) // there is no listxattrat before 6.13
	buf := make([]byte, 4<<10)
	n, err := unix.Llistxattr(at, buf)
	if err == unix.ERANGE {
		buf = make([]byte, 64<<10) // XATTR_LIST_MAX
		n, err = unix.Llistxattr(at, buf)
	}
	if err == unix.ENOTSUP {
		return nil, nil
	}
	if err != nil || n == 0 {
		return nil, err
	}
	var attrs map[string]string
	for attr := range strings.SplitSeq(strings.TrimSuffix(string(buf[:n]), "\x00"), "\x00") {
		if attr != "security.capability" && (!strings.HasPrefix(attr, "user.") || strings.HasPrefix(attr, "user.overlay.")) {
			continue
		}
		value := make([]byte, 64<<10) // XATTR_SIZE_MAX
		n, err := unix.Lgetxattr(at, attr, value)
		if err == unix.ENODATA {
			continue // removed since
		}
		if err != nil {
			return nil, err
		}
		if attrs == nil {
			attrs = map[string]string{}
		}
		attrs[attr] = string(value[:n])
	}
	return attrs, nil
}

// Everything writes a directory as one that nothing is beneath.
func (w *Writer) Everything(ctx context.Context, dir string) error {
	fd, err := OpenRoot(dir)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := w.root(fd); err != nil {
		return err
	}
	return w.comparedDir(ctx, fd, nil, "", 0)
}

package unpack

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/coracle-project/coracle/internal/freespace"
	"github.com/coracle-project/coracle/internal/safepath"
	"golang.org/x/sys/unix"
)

const (
	chunk      = 128 << 10 // bytes per read and write of a file
	checkFree  = 64 << 20  // bytes written between looks at the free space
	block      = 4 << 10   // bytes that a directory, an inode or a link may take
	flushSize  = 4 << 20   // bytes of a file that are sent to the disk at once
	flushLeast = 1 << 20   // bytes at a file's end that are worth it
)

func isExist(err error) bool { return errors.Is(err, unix.EEXIST) }

// create makes anything but a directory or hard link; EEXIST if the name is taken.
func (u *unpacker) create(d *safepath.Dir, base, name string, h *tar.Header, body io.Reader) error {
	var err error
	switch h.Typeflag {
	case tar.TypeSymlink:
		if h.Linkname == "" {
			return invalid("symbolic link to nothing")
		}
		u.longest = max(u.longest, int64(strings.Count(h.Linkname, "/")+1))
		err = d.Symlink(h.Linkname, base)
	case tar.TypeChar:
		err = d.Mknod(base, unix.S_IFCHR|0o600, unix.Mkdev(uint32(h.Devmajor), uint32(h.Devminor)))
	case tar.TypeBlock:
		err = d.Mknod(base, unix.S_IFBLK|0o600, unix.Mkdev(uint32(h.Devmajor), uint32(h.Devminor)))
	case tar.TypeFifo:
		err = d.Mknod(base, unix.S_IFIFO|0o600, 0)
	default:
		return u.file(d, base, name, h, body)
	}
	if err != nil {
		return err
	}
	return u.attributes(d, base, h, nil)
}

// file writes a regular file.
func (u *unpacker) file(d *safepath.Dir, base, name string, h *tar.Header, body io.Reader) error {
	if h.Size > u.lim.MaxBytes-u.written {
		return fmt.Errorf("%w: files hold more than %d bytes", ErrLimit, u.lim.MaxBytes)
	}
	f, err := d.Create(base, uint32(h.Mode)&0o777)
	if err != nil {
		return err
	}
	defer f.Close()
	u.recipe.content(name, h)
	err = u.content(f, h.Size, body)
	u.recipe.resume()
	if err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return fmt.Errorf("stat %s: %w", base, err)
	}
	if err := f.Close(); err != nil {
		return err
	}
	return u.attributes(d, base, h, &st)
}

// content copies size bytes. Runs of zeros become holes: the file reads the same,
// sparse files stay sparse, and a bomb of zeros does not fill the disk. Large files begin their
// way to the disk meanwhile, since who commits the layer waits for that: a file system's own
// writeback starts many seconds later.
func (u *unpacker) content(f *os.File, size int64, body io.Reader) error {
	hole := false
	var at, flushed int64
	for left := size; left > 0; {
		if err := u.ctx.Err(); err != nil {
			return err
		}
		b := u.buf[:min(left, int64(len(u.buf)))]
		if _, err := io.ReadFull(body, b); err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return err
		}
		left -= int64(len(b))
		at += int64(len(b))
		u.written += int64(len(b))
		hole = len(b) >= 4096 && zero(b)
		if hole {
			if _, err := f.Seek(int64(len(b)), io.SeekCurrent); err != nil {
				return err
			}
			continue
		}
		if _, err := f.Write(b); err != nil {
			return err
		}
		if at-flushed >= flushSize || left == 0 && at-flushed >= flushLeast {
			flush(f, flushed, at)
			flushed = at
		}
		if err := u.checkFree(int64(len(b))); err != nil {
			return err
		}
	}
	if hole {
		return f.Truncate(size)
	}
	return nil
}

// flush has a part of a file written to the disk, and does not wait for that. Whether that works
// is no matter: what makes the layer last is the sync of its file system, which tells of errors.
func flush(f *os.File, from, to int64) {
	_ = unix.SyncFileRange(int(f.Fd()), from, to-from, unix.SYNC_FILE_RANGE_WRITE)
}

// zero says whether b is all zeros; it looks no further than the first that is not.
func zero(b []byte) bool {
	if b[0] != 0 || b[len(b)-1] != 0 {
		return false
	}
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}

// checkFree stops before the file system is full.
func (u *unpacker) checkFree(n int64) error {
	u.sinceCheck += n
	if u.sinceCheck < checkFree {
		return nil
	}
	u.sinceCheck = 0
	st, err := u.root.Statfs()
	if err != nil {
		return err
	}
	return freespace.Keep("the layer", freespace.Left(&st), 0, u.lim.MinFree)
}

// besides is the most that an entry takes without a file's content.
func besides(h *tar.Header) int64 {
	n := int64(block + len(h.Linkname))
	for _, value := range keptXattrs(h) {
		n += int64(len(value))
	}
	return n
}

// directory makes a directory or takes over one that is there.
func (u *unpacker) directory(d *safepath.Dir, base, name string, h *tar.Header) error {
	if err := u.revive(name); err != nil {
		return err
	}
	mode := uint32(h.Mode) & 0o777
	err := d.Mkdir(base, mode)
	if isExist(err) {
		st, serr := d.Lstat(base)
		if serr != nil {
			return serr
		}
		if st.Mode&unix.S_IFMT == unix.S_IFDIR {
			err = nil
		} else {
			if err := u.clear(d, base, name); err != nil {
				return err
			}
			err = d.Mkdir(base, mode)
		}
	}
	if err != nil {
		return err
	}
	st, err := d.Lstat(base)
	if err != nil {
		return err
	}
	if err := u.attributes(d, base, h, &st); err != nil {
		return err
	}
	return u.rememberTimes(name, st.Ino, h)
}

// hardLink links an earlier entry of this layer.
func (u *unpacker) hardLink(d *safepath.Dir, base, name string, h *tar.Header) error {
	target, err := CleanName(h.Linkname)
	if err != nil {
		return err
	}
	if target == name {
		return invalid("hard link to itself")
	}
	if err := u.follow(); err != nil {
		return err
	}
	from, old, err := u.root.Parent(target)
	if err != nil {
		return fmt.Errorf("hard link to %q: %w", h.Linkname, err)
	}
	defer from.Close()
	st, err := from.Lstat(old)
	if err != nil {
		return fmt.Errorf("hard link to %q, which is not in this layer: %w", h.Linkname, err)
	}
	if hidden, _, err := WhiteoutOf(target); hidden != "" || err != nil || st.Mode&unix.S_IFMT == unix.S_IFDIR || isWhiteout(st) {
		return invalid("hard link to %q, a directory or whiteout", h.Linkname)
	}
	return u.replacing(d, base, name, func() error { return d.Link(from, old, base) })
}

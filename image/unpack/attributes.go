package unpack

import (
	"archive/tar"
	"errors"
	"iter"
	"strings"

	"github.com/coracle-project/coracle/internal/safepath"
	"golang.org/x/sys/unix"
)

const (
	xattrPrefix   = "SCHILY.xattr."
	maxXattrs     = 256
	maxXattrBytes = 64 << 10 // the kernel's limit of one value
	maxXattrName  = 255
)

// attributes sets owner, extended attributes, mode and times, in the one order in
// which none undoes another: chown clears setuid bits and capabilities. is, if not nil,
// is how the entry was made; what is right already is not set again, which saves two
// system calls for most files.
func (u *unpacker) attributes(d *safepath.Dir, base string, h *tar.Header, is *unix.Stat_t) error {
	if is == nil || int(is.Uid) != h.Uid || int(is.Gid) != h.Gid {
		if err := d.Lchown(base, h.Uid, h.Gid); err != nil {
			return err
		}
	}
	if err := setXattrs(h, func(attr string, value []byte) error { return d.Lsetxattr(base, attr, value) }); err != nil {
		return err
	}
	if h.Typeflag != tar.TypeSymlink && (is == nil || is.Mode&0o7777 != uint32(h.Mode)&0o7777) {
		if err := d.Chmod(base, uint32(h.Mode)); err != nil {
			return err
		}
	}
	if h.Typeflag == tar.TypeDir {
		return nil
	}
	return d.Utimes(base, h.AccessTime, h.ModTime)
}

// setXattrs calls set for the attributes that the entry of a layer gets.
func setXattrs(h *tar.Header, set func(attr string, value []byte) error) error {
	for attr, value := range keptXattrs(h) {
		user := strings.HasPrefix(attr, "user.")
		if user && h.Typeflag != tar.TypeReg && h.Typeflag != tar.TypeDir {
			continue // the kernel allows user.* only on these
		}
		err := set(attr, []byte(value))
		if user && errors.Is(err, unix.ENOTSUP) {
			continue // a file system without user.*; nothing depends on them
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// keptXattrs are the attributes of an entry that a layer may set.
func keptXattrs(h *tar.Header) iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		for key, value := range h.PAXRecords {
			attr, ok := strings.CutPrefix(key, xattrPrefix)
			if !ok || !Kept(attr) {
				continue
			}
			if !yield(attr, value) {
				return
			}
		}
	}
}

// Kept says whether a layer may set an attribute. user.overlay.* is what overlayfs
// obeys in mounts with the option userxattr.
func Kept(attr string) bool {
	if attr == "security.capability" {
		return true
	}
	return strings.HasPrefix(attr, "user.") && !strings.HasPrefix(attr, "user.overlay.")
}

func checkXattrs(h *tar.Header) error {
	n := 0
	for key, value := range h.PAXRecords {
		attr, ok := strings.CutPrefix(key, xattrPrefix)
		if !ok {
			continue
		}
		if n++; n > maxXattrs {
			return invalid("more than %d extended attributes", maxXattrs)
		}
		if len(value) > maxXattrBytes || len(attr) > maxXattrName || strings.ContainsRune(attr, 0) {
			return invalid("extended attribute %.40q with a name of %d and a value of %d bytes is too large", attr, len(attr), len(value))
		}
	}
	return nil
}

func (u *unpacker) rememberTimes(name string, ino uint64, h *tar.Header) error {
	u.times[name] = dirTimes{ino: ino, atime: h.AccessTime, mtime: h.ModTime}
	return u.hold(name)
}

// setTimes sets the directories' times when nothing more is written into them. A
// directory that a later entry replaced is known by its inode and left alone.
func (u *unpacker) setTimes() error {
	for name, t := range u.times {
		if err := u.ctx.Err(); err != nil {
			return err
		}
		if err := u.follow(); err != nil {
			return err
		}
		d, err := u.root.OpenDir(name)
		if err != nil {
			continue // replaced: a parent is no directory any more
		}
		st, err := d.Stat()
		if err == nil && st.Ino == t.ino {
			err = d.SetTimes(t.atime, t.mtime)
		}
		d.Close()
		if err != nil {
			return kind(err)
		}
	}
	return nil
}

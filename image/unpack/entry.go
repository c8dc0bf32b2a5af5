package unpack

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"math"
	"path"
	"strings"

	"github.com/coracle-project/coracle/internal/safepath"
	"golang.org/x/sys/unix"
)

// entry writes one entry of the archive.
func (u *unpacker) entry(h *tar.Header, body io.Reader) error {
	switch h.Typeflag {
	case tar.TypeXGlobalHeader:
		return nil // comments, as git-archive writes them
	case tar.TypeReg, tar.TypeCont, tar.TypeGNUSparse, tar.TypeLink, tar.TypeSymlink,
		tar.TypeChar, tar.TypeBlock, tar.TypeDir, tar.TypeFifo:
	default:
		return invalid("unknown entry type %q", h.Typeflag)
	}
	name, err := CleanName(h.Name)
	if err != nil {
		return err
	}
	if err := checkHeader(h); err != nil {
		return err
	}
	if name == "." {
		return u.rootEntry(h)
	}
	hidden, skip, err := WhiteoutOf(name)
	if skip || err != nil {
		return err
	}
	if hidden == OpaqueMark {
		return u.opaque(path.Dir(name))
	}
	if hidden != "" {
		return u.whiteout(path.Join(path.Dir(name), hidden))
	}
	dir, base, err := u.parentOf(name)
	if err != nil {
		return err
	}
	if h.Typeflag == tar.TypeDir {
		return u.directory(dir, base, name, h)
	}
	if h.Typeflag == tar.TypeLink {
		return u.hardLink(dir, base, name, h)
	}
	return u.replacing(dir, base, name, func() error { return u.create(dir, base, name, h, body) })
}

// CleanName turns an archive's name into a path relative to the layer's root.
func CleanName(name string) (string, error) {
	if name == "" || strings.ContainsRune(name, 0) {
		return "", invalid("empty name or NUL in name")
	}
	// A PAX header has room for a megabyte: a walk over the parents of such a name would take a
	// minute.
	if len(name) >= 2*unix.PathMax {
		return "", fmt.Errorf("%w: name of %d bytes", ErrLimit, len(name))
	}
	name = path.Clean(strings.TrimLeft(name, "/"))
	if name == ".." || strings.HasPrefix(name, "../") {
		return "", fmt.Errorf("%w: %w", ErrInvalid, safepath.ErrEscapes)
	}
	if len(name) >= unix.PathMax {
		return "", fmt.Errorf("%w: name of %d bytes", ErrLimit, len(name))
	}
	return name, nil
}

// checkHeader refuses numbers that the kernel's types cannot hold.
func checkHeader(h *tar.Header) error {
	if h.Uid < 0 || int64(h.Uid) >= math.MaxUint32 || h.Gid < 0 || int64(h.Gid) >= math.MaxUint32 {
		return invalid("owner %d:%d out of range", h.Uid, h.Gid)
	}
	if h.Devmajor < 0 || h.Devmajor > 0xfff || h.Devminor < 0 || h.Devminor > 0xfffff {
		if h.Typeflag == tar.TypeChar || h.Typeflag == tar.TypeBlock {
			return invalid("device number %d:%d out of range", h.Devmajor, h.Devminor)
		}
	}
	return checkXattrs(h)
}

// rootEntry applies an entry for the layer's root itself.
func (u *unpacker) rootEntry(h *tar.Header) error {
	if h.Typeflag != tar.TypeDir {
		return invalid("the root of a layer must be a directory")
	}
	d, err := u.root.OpenDir("")
	if err != nil {
		return err
	}
	defer d.Close()
	if err := d.SetOwner(h.Uid, h.Gid); err != nil {
		return err
	}
	if err := setXattrs(h, d.SetXattr); err != nil {
		return err
	}
	if err := d.SetMode(uint32(h.Mode)); err != nil {
		return err
	}
	st, err := d.Stat()
	if err != nil {
		return err
	}
	return u.rememberTimes(".", st.Ino, h)
}

// parentOf opens the directory that name is in, making it if the archive did not.
func (u *unpacker) parentOf(name string) (*safepath.Dir, string, error) {
	parent, base := path.Dir(name), path.Base(name)
	if u.parent != nil && u.parentName == parent {
		return u.parent, base, nil
	}
	d, err := u.ensureDir(parent)
	if err != nil {
		return nil, "", err
	}
	u.forgetParent()
	u.parent, u.parentName = d, parent
	return d, base, nil
}

func (u *unpacker) forgetParent() {
	if u.parent != nil {
		u.parent.Close()
		u.parent = nil
	}
}

func (u *unpacker) ensureDir(name string) (*safepath.Dir, error) {
	if err := u.revive(name); err != nil {
		return nil, err
	}
	if err := u.follow(); err != nil {
		return nil, err
	}
	d, made, err := u.root.EnsureDir(name, 0o755)
	u.entries += int64(len(made)) // one entry can make thousands
	if err != nil {
		return nil, err
	}
	if err := errors.Join(u.checkDepth(d, name), u.checkFree(int64(len(made))*block)); err != nil {
		d.Close()
		return nil, err
	}
	return d, nil
}

// maxFollowed is how many links the kernel follows on the way to one name (MAXSYMLINKS).
const maxFollowed = 40

// follow counts what it takes at worst to find a name by way of this layer's links. Without links
// that is no more than the name's length, which the archive has paid for.
func (u *unpacker) follow() error {
	if u.lookups += maxFollowed * u.longest; u.lookups > u.lim.MaxLookups {
		return fmt.Errorf("%w: following the layer's links takes more than %d lookups", ErrLimit, u.lim.MaxLookups)
	}
	return nil
}

// checkDepth refuses a directory that is nested too deeply, whatever links led to it.
func (u *unpacker) checkDepth(d *safepath.Dir, name string) error {
	depth := strings.Count(name, "/") + 1
	if u.longest > 0 {
		var err error
		if depth, err = d.Depth(u.root); errors.Is(err, safepath.ErrTooDeep) {
			depth = unix.PathMax // or more
		} else if err != nil {
			return err
		}
	}
	if int64(depth) > u.lim.MaxDepth {
		return fmt.Errorf("%w: directories nest deeper than %d levels", ErrLimit, u.lim.MaxDepth)
	}
	return nil
}

// replacing runs create, and once more after removing what is in its place:
// later entries win.
func (u *unpacker) replacing(d *safepath.Dir, base, name string, create func() error) error {
	err := create()
	if !isExist(err) {
		return err
	}
	if err := u.clear(d, base, name); err != nil {
		return err
	}
	return create()
}

// clear removes an earlier entry of this layer.
func (u *unpacker) clear(d *safepath.Dir, base, name string) error {
	st, err := d.Lstat(base)
	if err != nil {
		return err
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG, unix.S_IFDIR:
		u.recipe.spoil()
	case unix.S_IFLNK:
		// The names of files that came by way of it lead elsewhere now.
		if err := u.follow(); err != nil {
			return err
		}
		if to, err := u.root.OpenDir(name); err == nil {
			to.Close()
			u.recipe.spoil()
		}
	}
	return d.RemoveAll(base)
}

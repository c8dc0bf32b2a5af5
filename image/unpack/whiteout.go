package unpack

import (
	"path"
	"strings"

	"github.com/coracle-project/coracle/internal/safepath"
	"golang.org/x/sys/unix"
)

// OpaqueMark is what WhiteoutOf says of a directory's mark that hides all beneath: what is left of
// .wh..wh..opq.
const OpaqueMark = ".wh..opq"

const (
	whiteoutPrefix = ".wh."
	metaPrefix     = ".wh..wh." // aufs' own files: .wh..wh.plnk, .wh..wh.aufs, …
	opaqueXattr    = "trusted.overlay.opaque"
)

// WhiteoutOf says which sibling an entry hides: "" none, OpaqueMark all of them.
// skip is set for aufs' bookkeeping, which old images carry and no one reads.
func WhiteoutOf(name string) (hidden string, skip bool, err error) {
	parent, base := path.Split(name)
	for part := range strings.SplitSeq(strings.TrimSuffix(parent, "/"), "/") {
		if strings.HasPrefix(part, metaPrefix) {
			return "", true, nil
		}
		// The names are reserved, so a directory of that name is a trick to
		// have one reader see a whiteout where another sees a directory.
		if strings.HasPrefix(part, whiteoutPrefix) {
			return "", false, invalid("%q cannot be a directory", part)
		}
	}
	hidden, ok := strings.CutPrefix(base, whiteoutPrefix)
	if !ok {
		return "", false, nil
	}
	if strings.HasPrefix(base, metaPrefix) {
		return hidden, hidden != OpaqueMark, nil
	}
	if hidden == "" || hidden == "." || hidden == ".." {
		return "", false, invalid("whiteout of nothing")
	}
	return hidden, false, nil
}

func isWhiteout(st unix.Stat_t) bool {
	return st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == 0
}

// whiteout hides name in the layers beneath.
func (u *unpacker) whiteout(name string) error {
	d, base, err := u.parentOf(name)
	if err != nil {
		return err
	}
	if u.markers == FileMarkers {
		return u.mark(d, whiteoutPrefix+base)
	}
	err = d.Mknod(base, unix.S_IFCHR, 0)
	if err == nil {
		u.whiteouts[name] = struct{}{}
		return u.hold(name)
	}
	if !isExist(err) {
		return err
	}
	// The layer has the name too. A file covers the lower one by itself, a
	// directory would be merged with it unless it is opaque.
	st, err := d.Lstat(base)
	if err != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return err
	}
	return d.Lsetxattr(base, opaqueXattr, []byte("y"))
}

// opaque hides all that the layers beneath have in a directory.
func (u *unpacker) opaque(name string) error {
	d, err := u.ensureDir(name)
	if err != nil {
		return err
	}
	defer d.Close()
	if u.markers == FileMarkers {
		return u.mark(d, whiteoutPrefix+OpaqueMark)
	}
	return d.SetXattr(opaqueXattr, []byte("y"))
}

// revive turns whiteouts on the way to the directory name into opaque directories,
// because the layer has something there after all.
func (u *unpacker) revive(name string) error {
	if len(u.whiteouts) == 0 {
		return nil
	}
	for i := 0; i <= len(name); i++ {
		if i < len(name) && name[i] != '/' {
			continue
		}
		if err := u.reviveOne(name[:i]); err != nil {
			return err
		}
	}
	return nil
}

func (u *unpacker) reviveOne(name string) error {
	if _, ok := u.whiteouts[name]; !ok {
		return nil
	}
	delete(u.whiteouts, name)
	if err := u.follow(); err != nil {
		return err
	}
	d, base, err := u.root.Parent(name)
	if err != nil {
		return err
	}
	defer d.Close()
	return reviveIn(d, base)
}

func reviveIn(d *safepath.Dir, base string) error {
	if st, err := d.Lstat(base); err != nil || !isWhiteout(st) {
		return err // replaced since
	}
	if err := d.Remove(base); err != nil {
		return err
	}
	if err := d.Mkdir(base, 0o755); err != nil {
		return err
	}
	if err := d.Chmod(base, 0o755); err != nil {
		return err
	}
	return d.Lsetxattr(base, opaqueXattr, []byte("y"))
}

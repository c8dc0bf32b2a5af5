// Package copyup copies what a directory of a container holds into an empty file system, as
// mount option tmpcopyup wants it. The container's image made that directory, so nothing is
// followed: entries are opened by their names, one at a time, and links are copied as links.
package copyup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/internal/safepath"
)

// Copy copies the entries of a directory into another one, with owners, modes, times and
// extended attributes. The descriptors may be O_PATH and stay the caller's. Errors name the
// entry.
func Copy(ctx context.Context, from, to int) error {
	return asOwner(to, func() error { return (&tree{ctx: ctx}).directory(from, to, ".") })
}

type tree struct{ ctx context.Context }

func (t *tree) directory(from, to int, at string) error {
	in, err := openDirectory(from, ".")
	if err != nil {
		return fail("open", at, err)
	}
	defer in.Close()
	for {
		const some = 128
		names, err := in.Readdirnames(some)
		for _, name := range names {
			if t.ctx.Err() != nil {
				return context.Cause(t.ctx)
			}
			if err := t.entry(int(in.Fd()), to, name, path.Join(at, name)); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fail("read", at, err)
		}
	}
}

func (t *tree) entry(from, to int, name, at string) error {
	var st unix.Stat_t
	if err := unix.Fstatat(from, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return fail("look at", at, err)
	}
	var err error
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		err = t.subdirectory(from, to, name, at)
	case unix.S_IFREG:
		err = file(from, to, name)
	case unix.S_IFLNK:
		err = link(from, to, name)
	case unix.S_IFSOCK:
		return nil // its listener is elsewhere
	default:
		err = unix.Mknodat(to, name, st.Mode, int(st.Rdev))
	}
	if err != nil {
		return fail("copy", at, err)
	}
	return fail("copy", at, attributes(to, name, &st))
}

func (t *tree) subdirectory(from, to int, name, at string) error {
	below, err := openDirectory(from, name)
	if err != nil {
		return err
	}
	defer below.Close()
	if err := unix.Mkdirat(to, name, 0o700); err != nil {
		return err
	}
	made, err := openDirectory(to, name)
	if err != nil {
		return err
	}
	defer made.Close()
	if err := t.directory(int(below.Fd()), int(made.Fd()), at); err != nil {
		return err
	}
	return xattrs(below, made)
}

func file(from, to int, name string) error {
	in, err := safepath.OpenRegularAt(from, name) // it may no longer be a file
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := open(to, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	if err == nil {
		err = xattrs(in, out)
	}
	return errors.Join(err, out.Close())
}

func link(from, to int, name string) error {
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(from, name, buf)
	if err != nil {
		return err
	}
	return unix.Symlinkat(string(buf[:n]), to, name)
}

// attributes gives the copy the owner first, for that takes set-user-ID bits away.
func attributes(dir int, name string, st *unix.Stat_t) error {
	if err := unix.Fchownat(dir, name, int(st.Uid), int(st.Gid), unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFLNK {
		if err := unix.Fchmodat(dir, name, st.Mode&0o7777, 0); err != nil {
			return err
		}
	}
	return unix.UtimesNanoAt(dir, name, []unix.Timespec{st.Atim, st.Mtim}, unix.AT_SYMLINK_NOFOLLOW)
}

// xattrs copies what the other file system takes: tmpfs has no user attributes before Linux 6.6,
// and security modules set their own.
func xattrs(from, to *os.File) error {
	names := make([]byte, 64<<10) // XATTR_LIST_MAX
	n, err := unix.Flistxattr(int(from.Fd()), names)
	if errors.Is(err, unix.EOPNOTSUPP) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("listxattr: %w", err)
	}
	if n == 0 {
		return nil
	}
	value := make([]byte, 64<<10) // XATTR_SIZE_MAX
	for _, name := range strings.Split(strings.TrimSuffix(string(names[:n]), "\x00"), "\x00") {
		size, err := unix.Fgetxattr(int(from.Fd()), name, value)
		if err != nil {
			return fmt.Errorf("getxattr %s: %w", name, err)
		}
		err = unix.Fsetxattr(int(to.Fd()), name, value[:size], 0)
		if err != nil && !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.EPERM) {
			return fmt.Errorf("setxattr %s: %w", name, err)
		}
	}
	return nil
}

func openDirectory(dir int, name string) (*os.File, error) {
	return open(dir, name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
}

func open(dir int, name string, flags int, mode uint32) (*os.File, error) {
	fd, err := unix.Openat(dir, name, flags|unix.O_NOFOLLOW|unix.O_CLOEXEC, mode)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

func fail(verb, at string, err error) error {
	if err == nil {
		return nil
	}
	var named *entryError
	if errors.As(err, &named) {
		return err
	}
	return &entryError{verb, at, err}
}

// entryError names the entry that could not be copied, once.
type entryError struct {
	verb, at string
	err      error
}

func (e *entryError) Error() string { return e.verb + " " + e.at + ": " + e.err.Error() }
func (e *entryError) Unwrap() error { return e.err }

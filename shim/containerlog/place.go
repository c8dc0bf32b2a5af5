package containerlog

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/internal/safepath"
)

// ErrInvalid is the kind of error of a path that is no place for a log, and of a Limit that no log
// can have.
var ErrInvalid = errors.New("invalid argument")

// Place is where a log is: a name relative to the pod's log directory, which no link in it leads
// out of. Volumes may show log directories to containers, which could put a link to any of the
// host's directories in place of a container's own.
type Place struct{ dir, name string }

// PlaceOf finds the place of a log at path. An older daemon names no directory: then only the last
// component is not followed.
func PlaceOf(dir, path string) (Place, error) {
	if !filepath.IsAbs(path) {
		return Place{}, fmt.Errorf("%w: bad log path %q: it must be absolute", ErrInvalid, path)
	}
	if dir == "" {
		dir = filepath.Dir(path)
	}
	name, err := filepath.Rel(dir, path)
	if err != nil || !filepath.IsLocal(name) || name == "." {
		return Place{}, fmt.Errorf("%w: bad log path %q: it must be below the log directory %q", ErrInvalid, path, dir)
	}
	return Place{dir, name}, nil
}

func (p Place) path() string { return filepath.Join(p.dir, p.name) }

// at calls f with the log's path by way of its directory, which is open meanwhile.
func (p Place) at(f func(path string) error) error {
	root, err := unix.Open(p.dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return p.bad("make its directory first", err)
	}
	defer unix.Close(root)
	dir, err := unix.Openat2(root, filepath.Dir(p.name), &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return p.bad("its parent must be a directory below "+p.dir, err)
	}
	defer unix.Close(dir)
	return f(fmt.Sprintf("/proc/self/fd/%d/%s", dir, filepath.Base(p.name)))
}

// bad words the error of a path that is no place for a log, unless descriptors or memory are
// lacking.
func (p Place) bad(what string, err error) error {
	if exhausted(err) {
		return fmt.Errorf("open log %s: %w", p.path(), err)
	}
	return fmt.Errorf("%w: bad log path %s: %s: %w", ErrInvalid, p.path(), what, err)
}

// open opens the log for appending; its directory must exist. The error is ErrInvalid if the place
// is none for a log.
func (p Place) open() (f *os.File, err error) {
	err = p.at(func(path string) error {
		fd, err := openOrCreate(path)
		if errors.Is(err, safepath.ErrNotRegular) {
			return fmt.Errorf("%w: bad log path %s: not a regular file", ErrInvalid, p.path())
		}
		if err != nil {
			return p.bad("cannot open it", err)
		}
		f = os.NewFile(uintptr(fd), p.path())
		return nil
	})
	return f, err
}

// openOrCreate makes a file, or opens the regular one that is there: opening a device could act on
// it, and a FIFO could hang the shim.
func openOrCreate(path string) (int, error) {
	const tries = 3 // the file may be set aside meanwhile
	for try := 1; ; try++ {
		fd, err := unix.Open(path, unix.O_WRONLY|unix.O_APPEND|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o640)
		if !errors.Is(err, unix.EEXIST) {
			return fd, err
		}
		found, err := unix.Open(path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if errors.Is(err, unix.ENOENT) && try < tries {
			continue
		}
		if err != nil {
			return -1, err
		}
		defer unix.Close(found)
		fd, _, err = safepath.ReopenRegular(found, unix.O_WRONLY|unix.O_APPEND)
		if err == nil {
			_ = unix.SetNonblock(fd, false) // a regular file is never polled
		}
		return fd, err
	}
}

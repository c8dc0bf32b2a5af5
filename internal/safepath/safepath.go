// Package safepath is used for every path inside an image or a container. Such a
// path is untrusted: any component may be a symbolic link to the host's /etc, and
// may become one between a check and a use. So no caller joins strings and passes
// them to package os. It opens the tree once and names everything beneath it
// through the kernel, descriptor in, descriptor out.
//
//	root, err := safepath.Open("/run/coracle/pods/x/rootfs")
//	defer root.Close()
//	passwd, err := root.ReadFile("/etc/passwd", 1<<20)
//
// # Two ways to resolve
//
// A [Root] from [Open] resolves as chroot(2) does: absolute links and ".." stop at
// the root (openat2 with RESOLVE_IN_ROOT). That is what a process in the container
// sees. [Root.Strict] gives a view for unpacking: a path that leaves the
// root, if only by an absolute link, is an error of kind [ErrEscapes] (openat2
// with RESOLVE_BENEATH), because an archive that does it means harm.
// Neither follows magic links (/proc/*/fd/*, /proc/*/root).
//
// # The last component
//
// Only [Root.OpenFile] without O_CREATE or O_NOFOLLOW, [Root.OpenDir] and
// [Root.ReadFile] follow a link in the last component. Everything that creates, changes or
// removes acts on the name itself, never on what a link there points at.
//
// # Why openat2 directly
//
// Kernel 5.10 is the oldest supported and has openat2 (5.6). Libraries such as
// filepath-securejoin/pathrs-lite emulate it for older kernels in user space
// and offer only opening and mkdir; both costs, and neither half, are needed.
package safepath

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Kinds of error, for errors.Is. Besides them the errors wrap the system's
// errno, so errors.Is(err, fs.ErrNotExist) works.
var (
	// ErrEscapes says that a path would leave the root.
	ErrEscapes = errors.New("path leaves its root")
	// ErrTooLarge says that a file is larger than the caller's limit.
	ErrTooLarge = errors.New("file is larger than allowed")
	// ErrTooDeep says that directories nest deeper than a path can name.
	ErrTooDeep = errors.New("directories nest too deeply")
	// ErrNotRegular says that a path is not a regular file where one is needed.
	ErrNotRegular = errors.New("not a regular file")
)

// Root is an open directory that no path leads out of. It may be used by several
// goroutines at once. Close it.
type Root struct {
	name    string // for errors only
	fd      int
	resolve uint64
	view    bool // fd belongs to another Root
}

const (
	resolveInRoot = unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS
	resolveStrict = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS
)

// Open opens a directory as a root. dir itself is the host's path and is
// trusted: links in it are followed.
func Open(dir string) (*Root, error) {
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open root", Path: dir, Err: err}
	}
	return &Root{name: dir, fd: fd, resolve: resolveInRoot}, nil
}

// OpenFd makes a root of a directory that is already open; the descriptor is
// duplicated. name is for errors only.
func OpenFd(fd int, name string) (*Root, error) {
	own, err := unix.Openat(fd, ".", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open root", Path: name, Err: err}
	}
	return &Root{name: name, fd: own, resolve: resolveInRoot}, nil
}

// Strict returns a view of the same directory in which a path that would leave
// it is an error. The view is valid until r is closed and needs no Close.
func (r *Root) Strict() *Root {
	return &Root{name: r.name, fd: r.fd, resolve: resolveStrict, view: true}
}

// Name returns the directory as it was given to Open.
func (r *Root) Name() string { return r.name }

// Close releases the directory. Strict views must not be used afterwards.
func (r *Root) Close() error {
	if r.view || r.fd < 0 {
		return nil
	}
	fd := r.fd
	r.fd = -1
	return unix.Close(fd)
}

// fail words an error with the path inside the root, and its kind.
func (r *Root) fail(op, path string, err error) error {
	if err == nil {
		return nil
	}
	// EXDEV is openat2's word for leaving the root under RESOLVE_BENEATH.
	if errors.Is(err, unix.EXDEV) && !errors.Is(err, ErrEscapes) {
		err = ErrEscapes
	}
	return fmt.Errorf("%s %q in %s: %w", op, path, r.name, err)
}

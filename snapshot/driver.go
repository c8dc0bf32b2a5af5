package snapshot

import (
	"context"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/snapshot/diff"
)

// DriverName is a way to keep layers and to make root file systems of them.
type DriverName string

// The drivers.
const (
	// Overlay keeps layers as directories and mounts them with overlayfs. The default.
	Overlay DriverName = "overlay"
	// EROFS keeps each layer as one EROFS image, which is mounted from the file
	// (Linux 6.12) and stacked with overlayfs: a layer cannot be changed on the
	// host, and removing one is one unlink.
	EROFS DriverName = "erofs"
	// Native copies the layers for every snapshot. It is slow and large, but it
	// works where overlayfs does not: on overlayfs itself, on network file systems.
	Native DriverName = "native"
)

// Markers are how an unpacked layer says what it hides of the layers beneath.
type Markers int

// The forms of markers.
const (
	// OverlayMarkers are those of overlayfs: a hidden name is a character device
	// 0/0, a directory that hides all beneath it has trusted.overlay.opaque=y.
	OverlayMarkers Markers = iota
	// FileMarkers are those of layers' archives: empty files .wh.NAME, and
	// .wh..wh..opq in directories that hide all beneath.
	FileMarkers
)

// driver is what differs between the ways to keep layers and make root file systems. The
// Store does the rest: records, names, who uses which layer, deletion, recovery.
//
// A layer's life: an empty directory DIR/fs is unpacked into, with the driver's markers;
// seal makes of it what is kept, next to or instead of fs; then DIR gets its final
// name, and is never changed again. view shows its files until free.
//
// A root's life: the Store makes the directory rootfs.dir and writes the record into it;
// mount fills the directory and mounts the root at rootfs.target, or leaves the target
// as it was; unmount undoes the mount alone. Both may be interrupted by a crash at any
// point: the next Start asks mounts what is there. A root whose record is there but which
// is not mounted was lost in a reset of the machine, or never came to be; untouched tells
// the two apart, and mount is called again for the second, over whatever the first call
// left in the directory.
//
// No method is called twice at once for one layer or root. Errors say what was done to
// which path; ErrUnsupported is a kernel or file system that cannot hold such layers or
// roots, and how to fix that.
type driver interface {
	// markers say how layers are to be unpacked.
	markers() Markers
	// probe finds out, in an empty directory that it may fill, whether kernel and
	// file system can do it.
	probe(dir string) error
	// seal turns an unpacked layer into what is kept.
	seal(ctx context.Context, dir string) error
	// view returns a directory with a layer's files, to be read only, good until free.
	view(ctx context.Context, dir string) (path string, err error)
	// free lets go of what was made to use a layer, which no one does now or which
	// must not be used any more. The layer stays as it is.
	free(dir string) error

	mount(ctx context.Context, r rootfs) error
	unmount(target string) error
	// mounts lists where roots of the snapshots in the directory are mounted, by
	// the names of their directories.
	mounts(snapshots string) (map[string][]string, error)
	// untouched says that no one can have written to a root that is not mounted.
	untouched(r rootfs) (bool, error)
	// changes writes what the root has that its layers do not, in tar's terms.
	changes(ctx context.Context, r rootfs, to *diff.Writer) error
}

// rootfs is one root file system as a driver sees it. Its private directory is laid out
// the same way for all drivers: fs holds what the container writes.
type rootfs struct {
	dir    string   // the snapshot's own directory
	layers []string // directories of the layers, lowest first, none twice
	target string   // mount point
	users  *os.File // user namespace whose ids the root shows; nil: as on disk
	ids    Users    // those of users
	access Access
	label  string // SELinux
}

func (r rootfs) upper() string { return upperIn(r.dir) }

// fsName is the directory of a layer or snapshot that holds its files.
const fsName = diff.FilesDir

func upperIn(dir string) string { return dir + "/" + fsName }

// newDriver returns the named driver, not yet probed.
func newDriver(name DriverName, root string, discard func(dir string) error) (driver, error) {
	switch name {
	case "", Overlay:
		return &overlayDriver{root: root}, nil
	case EROFS:
		return &erofsDriver{overlayDriver: overlayDriver{root: root}, discard: discard}, nil
	case Native:
		return nativeDriver{root}, nil
	}
	return nil, fmt.Errorf("%w: snapshot driver %q is none of overlay, erofs, native", ErrInvalid, name)
}

// attach moves a detached mount to its place, with the attributes of the access. A container's root
// cannot be nosuid on the host: runtimes make the container's own mount from this one, which
// inherits that, so set-user-id programs would not work inside (runc 1.1, libcontainer and our
// engine alike), and an OCI configuration has no field to undo it. What keeps users of the host out
// is the store's directory.
func attach(mount int, r rootfs) error {
	if r.access == ReadOnly {
		// It is for looking at, perhaps by any user of the host: an image's set-user-id
		// programs and devices must be of no use to them.
		const attributes = unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV
		if err := unix.MountSetattr(mount, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: attributes}); err != nil {
			return fmt.Errorf("make %s read-only: %w", r.target, err)
		}
	}
	if err := unix.MoveMount(mount, "", unix.AT_FDCWD, r.target, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("attach root at %s: %w", r.target, err)
	}
	return nil
}

// Package driver has the three ways to keep layers and to make root file systems of them.
package driver

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/snapshot/diff"
)

// Name is a way to keep layers and to make root file systems of them.
type Name string

// The drivers.
const (
	// Overlay keeps layers as directories and mounts them with overlayfs. The default.
	Overlay Name = "overlay"
	// EROFS keeps each layer as one EROFS image, which is mounted from the file
	// (Linux 6.12) and stacked with overlayfs: a layer cannot be changed on the
	// host, and removing one is one unlink.
	EROFS Name = "erofs"
	// Native copies the layers for every snapshot. It is slow and large, but it
	// works where overlayfs does not: on overlayfs itself, on network file systems.
	Native Name = "native"
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

// Driver is what differs between the ways to keep layers and make root file systems.
// snapshot.Store does the rest: records, names, who uses which layer, deletion, recovery.
//
// A layer's life: an empty directory DIR/fs is unpacked into, with the driver's markers;
// Seal makes of it what is kept, next to or instead of fs; then DIR gets its final
// name, and is never changed again. View shows its files until Free.
//
// A root's life: snapshot.Store makes the directory Rootfs.Dir and writes the record into it;
// Mount fills the directory and mounts the root at Rootfs.Target, or leaves the target
// as it was; Unmount undoes the mount alone. Both may be interrupted by a crash at any
// point: the next Start asks Mounts what is there. A root whose record is there but which
// is not mounted was lost in a reset of the machine, or never came to be; Untouched tells
// the two apart, and Mount is called again for the second, over whatever the first call
// left in the directory.
//
// No method is called twice at once for one layer or root. Errors say what was done to
// which path; diff.ErrUnsupported is a kernel or file system that cannot hold such layers or
// roots, and how to fix that.
type Driver interface {
	// Markers say how layers are to be unpacked.
	Markers() Markers
	// Probe finds out, in an empty directory that it may fill, whether kernel and
	// file system can do it.
	Probe(dir string) error
	// Seal turns an unpacked layer into what is kept.
	Seal(ctx context.Context, dir string) error
	// View returns a directory with a layer's files, to be read only, good until Free.
	View(ctx context.Context, dir string) (path string, err error)
	// Free lets go of what was made to use a layer, which no one does now or which
	// must not be used any more. The layer stays as it is.
	Free(dir string) error

	Mount(ctx context.Context, r Rootfs) error
	Unmount(target string) error
	// Mounts lists where roots of the snapshots in the directory are mounted, by
	// the names of their directories.
	Mounts(snapshots string) (map[string][]string, error)
	// Untouched says that no one can have written to a root that is not mounted.
	Untouched(r Rootfs) (bool, error)
	// Changes writes what the root has that its layers do not, in tar's terms.
	Changes(ctx context.Context, r Rootfs, to *diff.Writer) error
}

// Rootfs is one root file system as a driver sees it. Its private directory is laid out
// the same way for all drivers: fs holds what the container writes.
type Rootfs struct {
	Dir    string   // the snapshot's own directory
	Layers []string // directories of the layers, lowest first, none twice
	Target string   // mount point
	Users  *os.File // user namespace whose ids the root shows; nil: as on disk
	IDs    Users    // those of Users
	Access Access
	Label  string // SELinux
}

// Access says what may be done to a root.
type Access string

// The kinds of access.
const (
	ReadWrite Access = ""
	ReadOnly  Access = "ro"
)

// ErrDamaged is a layer that is there and cannot be used.
var ErrDamaged = errors.New("layer is damaged")

// EmptyDir is the directory of a store that is used for a snapshot without layers.
const EmptyDir = "empty"

func (r Rootfs) upper() string { return FilesIn(r.Dir) }

// FilesIn is where the directory of a layer or snapshot holds its files.
func FilesIn(dir string) string { return dir + "/" + diff.FilesDir }

// New returns the named driver, not yet probed.
func New(name Name, root string, discard func(dir string) error) (Driver, error) {
	switch name {
	case "", Overlay:
		return &overlayfs{root: root}, nil
	case EROFS:
		return &erofsDriver{overlayfs: overlayfs{root: root}, discard: discard}, nil
	case Native:
		return nativeDriver{root}, nil
	}
	return nil, fmt.Errorf("%w: snapshot driver %q is none of overlay, erofs, native", diff.ErrInvalid, name)
}

// attach moves a detached mount to its place, with the attributes of the access. A container's root
// cannot be nosuid on the host: runtimes make the container's own mount from this one, which
// inherits that, so set-user-id programs would not work inside (runc 1.1, libcontainer and our
// engine alike), and an OCI configuration has no field to undo it. What keeps users of the host out
// is the store's directory.
func attach(mount int, r Rootfs) error {
	if r.Access == ReadOnly {
		// It is for looking at, perhaps by any user of the host: an image's set-user-id
		// programs and devices must be of no use to them.
		const attributes = unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV
		if err := unix.MountSetattr(mount, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: attributes}); err != nil {
			return fmt.Errorf("make %s read-only: %w", r.Target, err)
		}
	}
	if err := unix.MoveMount(mount, "", unix.AT_FDCWD, r.Target, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("attach root at %s: %w", r.Target, err)
	}
	return nil
}

// Package mountpoint mounts what pods' volumes are made of: memory, huge pages, and what is
// elsewhere on the node. It also says what is mounted on a path.
package mountpoint

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/cluster/internal/rmtree"
)

// Bind makes target show what source is open on, and what the host mounts below that later. If it
// shows that already, it stays. What is taken away below target, as when the pod ends, stays on the
// host.
func Bind(ctx context.Context, source int, target string) error {
	var want, have unix.Stat_t
	if err := unix.Fstat(source, &want); err != nil {
		return err
	}
	if err := unix.Lstat(target, &have); err == nil {
		if have.Dev == want.Dev && have.Ino == want.Ino {
			return receiveAt(target)
		}
		// What was bound for an earlier instance of the container is not what the path leads to
		// now.
		if err := rmtree.Path(ctx, target); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(filepath.Dir(target), 0o750); err != nil {
		return err
	}
	var err error
	if want.Mode&unix.S_IFMT == unix.S_IFDIR {
		err = os.Mkdir(target, 0o750)
	} else {
		// Anything but a directory is mounted on a file.
		err = os.WriteFile(target, nil, 0o640)
	}
	if err != nil {
		return err
	}
	tree, err := unix.OpenTree(source, "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH)
	if err == nil {
		err = attach(tree, target)
		unix.Close(tree)
	}
	if err != nil {
		return errors.Join(&os.PathError{Op: "bind", Path: target, Err: err}, rmtree.Path(context.WithoutCancel(ctx), target))
	}
	return nil
}

// attach mounts a tree on target. It leaves the host's peer group before that: in there, what is
// taken away below target would be taken away on the host, too.
func attach(tree int, target string) error {
	err := receive(tree, "", unix.AT_EMPTY_PATH)
	old := errors.Is(err, unix.ENOSYS)
	if err != nil && !old {
		return err
	}
	if err := unix.MoveMount(tree, "", unix.AT_FDCWD, target, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil || !old {
		return err
	}
	return receiveAt(target)
}

// receiveAt has what is mounted on target receive mounts from the host and send it none. Pods'
// mounts are its peers, for mountPropagation.
func receiveAt(target string) error {
	err := receive(unix.AT_FDCWD, target, 0)
	if errors.Is(err, unix.ENOSYS) { // before Linux 5.12
		err = unix.Mount("", target, "", unix.MS_SLAVE|unix.MS_REC, "")
		if err == nil {
			err = unix.Mount("", target, "", unix.MS_SHARED|unix.MS_REC, "")
		}
	}
	if err != nil {
		return &os.PathError{Op: "set propagation", Path: target, Err: err}
	}
	return nil
}

func receive(dir int, path string, flags uint) error {
	for _, how := range []uint64{unix.MS_SLAVE, unix.MS_SHARED} { // the kernel takes one at a time
		if err := unix.MountSetattr(dir, path, flags|unix.AT_RECURSIVE, &unix.MountAttr{Propagation: how}); err != nil {
			return err
		}
	}
	return nil
}

// Shows says whether what source is open on is mounted on target.
func Shows(target string, source int) bool {
	var want, have unix.Stat_t
	return unix.Fstat(source, &want) == nil && unix.Lstat(target, &have) == nil && have.Dev == want.Dev && have.Ino == want.Ino
}

// Listed says whether something is mounted on dir, without looking at what.
func Listed(dir string) (bool, error) {
	dir, err := realParent(dir)
	if err != nil {
		return false, err
	}
	mounts, err := mountinfo.GetMounts(mountinfo.SingleEntryFilter(dir))
	return len(mounts) > 0, err
}

// realParent resolves links in the path up to its last element: the kernel lists mounts by their
// real paths.
func realParent(path string) (string, error) {
	parent, err := filepath.EvalSymlinks(filepath.Dir(path))
	if errors.Is(err, fs.ErrNotExist) {
		return path, nil
	}
	return filepath.Join(parent, filepath.Base(path)), err
}

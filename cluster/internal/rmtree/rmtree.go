// Package rmtree removes trees that hostile programs have filled: containers' volumes.
//
// It follows no link and enters no mount: a mount that is in its way is taken away, and what is in
// it is not touched. However deep or wide a tree is, it takes a bounded number of descriptors and
// bounded memory.
package rmtree

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// MaxDepth is how deep a tree is descended into, one descriptor for each level; what is deeper is
// moved up first.
const MaxDepth = 64

const (
	// namesAtOnce is how many names of a directory are in memory at a time.
	namesAtOnce = 512
	// mostErrors of one directory are told.
	mostErrors = 8
)

// stackedMounts bounds how many mounts on one place are taken away.
const stackedMounts = 100

// openDir opens a directory, which must not be a link.
const openDir = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC

// Path removes a file or tree by its path, whose directory is our own; see At.
func Path(ctx context.Context, path string) error {
	parent, err := os.OpenFile(filepath.Dir(path), openDir, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer parent.Close()
	return At(ctx, int(parent.Fd()), filepath.Base(path))
}

// At removes what name is in the directory parent, with all that is below it. If there is nothing,
// it returns nil. When ctx ends, it stops at the next directory, and what is left can be removed by
// another call.
func At(ctx context.Context, parent int, name string) error {
	return (&removal{ctx: ctx, top: -1}).remove(parent, name, 0)
}

// removal is the removal of one tree.
type removal struct {
	ctx context.Context
	// top is the tree's first directory, once it is open.
	top int
	// moved says that something too deep was moved up into top since that was last read.
	moved bool
}

func (r *removal) remove(parent int, name string, depth int) error {
	for mounts := 0; mounts < stackedMounts; {
		fault := func(op string, err error) error { return &os.PathError{Op: op, Path: name, Err: err} }
		err := unix.Unlinkat(parent, name, 0)
		switch {
		case err == nil || errors.Is(err, unix.ENOENT):
			return nil
		case errors.Is(err, unix.EBUSY): // a mount on a file
			if err := unmountAt(parent, name); err != nil {
				return fault("unmount", err)
			}
			mounts++
			continue
		case !errors.Is(err, unix.EISDIR) && !errors.Is(err, unix.EPERM):
			return fault("remove", err)
		}
		dir, err := unix.Openat2(parent, name, &unix.OpenHow{
			Flags:   openDir,
			Resolve: unix.RESOLVE_NO_XDEV | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_BENEATH,
		})
		switch {
		case errors.Is(err, unix.EXDEV): // a mount on a directory
			if err := unmountAt(parent, name); err != nil {
				return fault("unmount", err)
			}
			mounts++
			continue
		case errors.Is(err, unix.ENOENT):
			return nil
		case err != nil:
			return fault("remove", err)
		}
		if depth >= MaxDepth {
			err := unix.Renameat(parent, name, r.top, fmt.Sprintf("deep-%x", rand.Uint64()))
			unix.Close(dir)
			r.moved = r.moved || err == nil
			if err != nil {
				return fault("move", err)
			}
			return nil
		}
		if err := r.entries(dir, name, depth); err != nil {
			return err
		}
		err = unix.Unlinkat(parent, name, unix.AT_REMOVEDIR)
		switch {
		case err == nil || errors.Is(err, unix.ENOENT):
			return nil
		case errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EBUSY):
			mounts++ // something came meanwhile
		default:
			return fault("remove", err)
		}
	}
	return &os.PathError{Op: "remove", Path: name, Err: unix.EBUSY}
}

// entries removes all that is in the directory fd, and closes it.
func (r *removal) entries(fd int, name string, depth int) error {
	dir := os.NewFile(uintptr(fd), name)
	defer dir.Close()
	if depth == 0 {
		r.top = fd
	}
	for {
		r.moved = r.moved && depth > 0
		if err := r.pass(dir, fd, depth); err != nil || depth > 0 || !r.moved {
			return err
		}
		if _, err := dir.Seek(0, io.SeekStart); err != nil {
			return err
		}
	}
}

// pass goes through a directory once, some names at a time: a container may have made millions.
// What a file system leaves out, as entries go while they are read, is found when the directory
// cannot be removed.
func (r *removal) pass(dir *os.File, fd, depth int) error {
	var errs []error
	for {
		if err := r.ctx.Err(); err != nil {
			return err
		}
		names, err := dir.Readdirnames(namesAtOnce)
		if errors.Is(err, io.EOF) {
			return errors.Join(errs...)
		}
		if err != nil {
			return errors.Join(append(errs, err)...)
		}
		for _, entry := range names {
			err := r.remove(fd, entry, depth+1)
			if r.ctx.Err() != nil {
				return r.ctx.Err()
			}
			if err != nil && len(errs) < mostErrors {
				errs = append(errs, err)
			}
		}
	}
}

// unmountAt takes away what is mounted on name in the directory parent. The way there is a
// descriptor, and the last step follows no link.
func unmountAt(parent int, name string) error {
	return unix.Unmount(fmt.Sprintf("/proc/self/fd/%d/%s", parent, name), unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
}

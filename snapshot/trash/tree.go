package trash

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/internal/treewalk"
)

// maxNesting bounds the descriptors that a removal holds, one per directory level.
// A container can nest directories without limit, so what is deeper is first
// renamed up into the directory of the trash and deleted from there.
const maxNesting = 32

// removeTree deletes the entry name of the directory dir with all below it. It follows no symbolic
// link, and looks into no mount, but unmounts what is at the entry's directory named mount.
func removeTree(ctx context.Context, dir, name, mount string) error {
	top, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", dir, err)
	}
	defer unix.Close(top)
	r := remover{ctx: ctx, top: top, mount: mount, names: []string{name}}
	var errs []error
	for len(r.names) > 0 {
		next := r.names[len(r.names)-1]
		r.names = r.names[:len(r.names)-1]
		if err := r.remove(top, next, 0); err != nil {
			errs = append(errs, fmt.Errorf("delete %s: %w", filepath.Join(dir, next), err))
		}
	}
	return errors.Join(errs...)
}

type remover struct {
	ctx   context.Context
	top   int      // the trash's directory
	mount string   // see removeTree
	names []string // entries of top still to delete
}

func (r *remover) remove(parent int, name string, depth int) error {
	if err := r.ctx.Err(); err != nil {
		return err
	}
	err := unix.Unlinkat(parent, name, 0)
	if err == nil || err == unix.ENOENT {
		return nil
	}
	if err != unix.EISDIR {
		return err
	}
	err = unix.Unlinkat(parent, name, unix.AT_REMOVEDIR)
	for err == unix.EBUSY && depth == 1 && name == r.mount && unmountAt(parent, name) == nil {
		err = unix.Unlinkat(parent, name, unix.AT_REMOVEDIR)
	}
	if err == nil || err == unix.ENOENT {
		return nil
	}
	if err != unix.ENOTEMPTY && err != unix.EEXIST {
		return err
	}
	if depth >= maxNesting {
		up := rand.Text()
		if err := unix.Renameat(parent, name, r.top, up); err != nil {
			return err
		}
		r.names = append(r.names, up)
		return nil
	}
	if err := r.empty(parent, name, depth); err != nil {
		return err
	}
	return unix.Unlinkat(parent, name, unix.AT_REMOVEDIR)
}

// unmountAt takes away what is mounted at an entry. At a layer's fs that is a lazy layer, mounted
// when no one wanted it any more; a mount that comes even later fails, since its directory is gone.
func unmountAt(parent int, name string) error {
	return unix.Unmount(fmt.Sprintf("/proc/self/fd/%d/%s", parent, name), unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
}

func (r *remover) empty(parent int, name string, depth int) error {
	fd, err := unix.Openat(parent, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	// Entries that cannot be deleted are met again in each round: give up when a
	// round has only those.
	for {
		if _, err := unix.Seek(fd, 0, unix.SEEK_SET); err != nil {
			return err
		}
		var failed error
		removed := 0
		err := treewalk.EachEntry(fd, func(entry string) error {
			if err := r.remove(fd, entry, depth+1); err != nil {
				failed = err
				return nil
			}
			removed++
			return nil
		})
		if err := errors.Join(err, r.ctx.Err()); err != nil {
			return err
		}
		if removed == 0 {
			return failed
		}
	}
}

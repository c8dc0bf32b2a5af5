package base

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/runtime"
)

// Delete implements runtime.Container. A container that was created but never
// started does not count as running, as with runc.
func (c *Container) Delete(ctx context.Context, opts runtime.DeleteOptions) error {
	if err := c.delete(ctx, opts); err != nil {
		return c.Fail("delete", err)
	}
	return nil
}

func (c *Container) delete(ctx context.Context, opts runtime.DeleteOptions) error {
	// What is gone, or has been made again under this id, is not ours.
	ours, err := c.Rec.isIn(c.Dir())
	if errors.Is(err, os.ErrNotExist) || err == nil && !ours {
		return nil
	}
	if err != nil {
		return err
	}
	status, err := c.Status()
	if err != nil && !opts.Force {
		return err
	}
	switch status {
	case specs.StateStopped, specs.StateCreated:
	default:
		if !opts.Force {
			return runtime.ErrRunning
		}
	}
	if err := c.Remove(ctx); err != nil {
		return err
	}
	c.runPoststop(ctx)
	return nil
}

// Remove kills what is left and removes cgroups, then the directory: as long as
// that exists, a remove that was interrupted can be repeated.
func (c *Container) Remove(ctx context.Context) error {
	if !c.Rec.removeEmpty() {
		if err := c.Rec.killAll(ctx); err != nil {
			return err
		}
	}
	if err := c.killInit(ctx); err != nil {
		return err
	}
	if err := faultDeleteKilled.At(ctx); err != nil {
		return err
	}
	if err := c.removeBusyCgroups(ctx); err != nil {
		return err
	}
	if c.Rec.Resctrl != nil {
		if err := c.Rec.Resctrl.Remove(); err != nil {
			return err
		}
	}
	if err := faultDeleteCgroups.At(ctx); err != nil {
		return err
	}
	return c.Store.Release(ctx, c.Rec)
}

// removeEmpty removes the cgroup whose list of processes is the container's. The kernel refuses if
// it has processes. Most containers have none by then, and trying is quicker than reading the list.
func (r *Record) removeEmpty() bool {
	path := r.listPath()
	return path != "" && !r.Cgroup.Systemd && unix.Rmdir(path) == nil
}

// removeBusyCgroups takes into account that a process whose maker was killed may just now be
// entering the cgroups, on version 1 one after the other, and be in some that no one lists.
func (c *Container) removeBusyCgroups(ctx context.Context) error {
	const tries = 10
	for try := 1; ; try++ {
		err := c.Rec.removeCgroups()
		if !errors.Is(err, unix.EBUSY) || try == tries || ctx.Err() != nil {
			return err
		}
		if err := c.Rec.killAll(ctx); err != nil {
			return err
		}
	}
}

// killInit covers an init that has left its cgroup.
func (c *Container) killInit(ctx context.Context) error {
	if !c.Rec.Init.Alive() {
		return nil
	}
	fds := OpenPidfds([]int{c.Rec.Init.Pid})
	if len(fds) == 0 {
		return nil
	}
	defer unix.Close(fds[0])
	if err := c.Rec.Init.Signal(unix.SIGKILL); err != nil && !errors.Is(err, runtime.ErrNotRunning) {
		return err
	}
	return AwaitExits(ctx, fds)
}

// removeCgroups removes the container's cgroups in every hierarchy, with what
// the container made below them. All their processes must be dead.
func (r *Record) removeCgroups() error {
	if r.Cgroup.Systemd {
		cgm, err := r.CgroupManager()
		if err != nil {
			return err
		}
		return cgm.Destroy()
	}
	var errs []error
	for _, path := range r.CgroupPaths {
		errs = append(errs, removeCgroup(path))
	}
	return errors.Join(errs...)
}

func removeCgroup(path string) error {
	err := unix.Rmdir(path)
	if err == nil || errors.Is(err, unix.ENOENT) {
		return nil
	}
	// Children first. Only directories can be removed in a cgroup file system.
	var below []string
	walkErr := filepath.WalkDir(path, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			if errors.Is(err, os.ErrNotExist) {
				return nil
			}
			return err
		}
		if d.IsDir() {
			below = append(below, p)
		}
		return nil
	})
	if walkErr != nil {
		return walkErr
	}
	for i := len(below) - 1; i >= 0; i-- {
		if err := rmdirIdle(below[i]); err != nil {
			return fmt.Errorf("remove cgroup %s: %w", below[i], err)
		}
	}
	return nil
}

// rmdirIdle waits a little for a cgroup to be let go: a process is reported dead
// before it has left its cgroup (Linux 6.19 and later), and the kernel tells no one
// when it has.
func rmdirIdle(path string) error {
	const longest = 64 * time.Millisecond
	for wait := time.Millisecond; ; wait *= 2 {
		err := unix.Rmdir(path)
		if err == nil || errors.Is(err, unix.ENOENT) {
			return nil
		}
		if !errors.Is(err, unix.EBUSY) || wait > longest {
			return err
		}
		time.Sleep(wait)
	}
}

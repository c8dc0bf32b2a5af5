package lc

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

	"github.com/coracle-project/coracle/internal/fault"
	"github.com/coracle-project/coracle/runtime"
)

// Delete implements runtime.Container. A container that was created but never
// started does not count as running, as with runc.
func (c *container) Delete(ctx context.Context, opts runtime.DeleteOptions) error {
	if err := c.delete(ctx, opts); err != nil {
		return c.fail("delete", err)
	}
	return nil
}

func (c *container) delete(ctx context.Context, opts runtime.DeleteOptions) error {
	// What is gone, or has been made again under this id, is not ours.
	now, err := readRecord(c.dir())
	if errors.Is(err, os.ErrNotExist) || err == nil && !now.Created.Equal(c.rec.Created) {
		return nil
	}
	if err != nil {
		return err
	}
	status, err := c.status()
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
	if err := c.remove(ctx); err != nil {
		return err
	}
	if err := c.runHooks(ctx, c.rec.Poststop, specs.StateStopped); err != nil {
		c.engine.log.Warn("poststop hook failed", "container", c.rec.ID, "error", err)
	}
	return nil
}

// remove kills what is left and removes cgroups, then the directory: as long as
// that exists, a remove that was interrupted can be repeated.
func (c *container) remove(ctx context.Context) error {
	if err := c.rec.killAll(ctx); err != nil {
		return err
	}
	if err := c.killInit(ctx); err != nil {
		return err
	}
	if err := fault.At(ctx, "runtime.delete.killed"); err != nil {
		return err
	}
	if err := c.rec.removeCgroups(); err != nil {
		return err
	}
	if err := fault.At(ctx, "runtime.delete.cgroups"); err != nil {
		return err
	}
	return c.engine.release(ctx, c.rec)
}

// killInit covers an init that has left its cgroup.
func (c *container) killInit(ctx context.Context) error {
	if !c.rec.Init.alive() {
		return nil
	}
	fds := openPidfds([]int{c.rec.Init.Pid})
	if len(fds) == 0 {
		return nil
	}
	defer unix.Close(fds[0])
	if err := c.rec.Init.signal(unix.SIGKILL); err != nil && !errors.Is(err, runtime.ErrNotRunning) {
		return err
	}
	return awaitExits(ctx, fds)
}

// removeCgroups removes the container's cgroups in every hierarchy, with what
// the container made below them. All their processes must be dead.
func (r *record) removeCgroups() error {
	if r.Cgroup.Systemd {
		cgm, err := r.cgroupManager()
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
// before it has left its cgroup (Linux 6.19 and later), and the kernel tells nobody
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

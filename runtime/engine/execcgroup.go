package engine

import (
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
)

// clone has the starter clone the process that joins the container, into its cgroup.
func (e *entry) clone(fds []int) (int, error) {
	into := func(cgroup string) (int, error) {
		if cgroup == "" {
			return e.container.engine.clone(e.code, 0, -1, fds)
		}
		fd, err := unix.Open(cgroup, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return 0, fmt.Errorf("open cgroup %s: %w", cgroup, err)
		}
		defer unix.Close(fd)
		return e.container.engine.clone(e.code, 0, len(fds), append(slices.Clip(fds), fd))
	}
	if e.unified == "" || len(e.opts.Cgroups) > 0 {
		return into(e.unified) // only where the caller wants it
	}
	return intoOrWithInit(e.unified, e.container.Rec.InitCgroup, into)
}

// intoOrWithInit clones into the container's cgroup. If that takes no process, it clones once more
// into init's, as runc does.
func intoOrWithInit(own string, inits func() (string, error), clone func(cgroup string) (int, error)) (int, error) {
	pid, err := clone(own)
	if !takesNone(err) {
		return pid, err
	}
	other, lookErr := inits()
	if lookErr != nil {
		return 0, errors.Join(err, fmt.Errorf("find init's cgroup: %w", lookErr))
	}
	if other == own {
		return 0, err
	}
	return clone(other)
}

// takesNone says whether a cgroup takes no process (cgroups(7), "no internal processes" rule): a
// container that may divide its cgroup has moved its processes to one below and given that a
// controller (EBUSY), or the cgroup has been removed before it was opened, or after that.
func takesNone(err error) bool {
	return errors.Is(err, unix.EBUSY) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENODEV)
}

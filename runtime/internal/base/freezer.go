package base

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/opencontainers/cgroups"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/runtime/internal/stuck"
)

// freezePatiently freezes also what hardly gets a processor. On v1 a process has to run before it
// is frozen, and libcontainer thaws again after a millisecond. Here nothing is thawed before a
// failure, or the end of ctx or stuck.Patience; cgroup-v1/freezer-subsystem.rst of the kernel.
//
// A failure leaves the cgroup as it was: what was frozen before is not thawed, neither here nor by
// libcontainer.
func (r *Record) freezePatiently(ctx context.Context) (err error) {
	f, err := r.openFreezer()
	if err != nil {
		return err
	}
	defer unix.Close(f.fd)
	before, err := f.set()
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, unlessGone(f.write(before)))
		}
	}()
	path := r.CgroupPaths["freezer"]
	failed := errors.New("it was frozen before, and is not now")
	if path == "" || before == f.thawed {
		if failed = r.freeze(cgroups.Frozen); failed == nil || path == "" {
			return failed
		}
	}
	ctx, cancel := context.WithTimeout(ctx, stuck.Patience)
	defer cancel()
	for {
		// Written each time for processes that have come meanwhile.
		if err := f.write(f.frozen); err != nil {
			return err
		}
		state, err := cgroups.ReadFile(path, "freezer.state")
		if err != nil {
			return err
		}
		if strings.TrimSpace(state) == string(cgroups.Frozen) {
			return nil
		}
		select {
		case <-time.After(time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("%w: a process has not run: %w", failed, ctx.Err())
		}
	}
}

// freezer is an open file that freezes and thaws a cgroup.
type freezer struct {
	fd             int
	frozen, thawed string // what to write
	// dir and self name the file that says whether the cgroup itself is to be frozen, rather than one
	// above it: 0 or 1.
	dir, self string
}

// openFreezer fails if the container has no freezer.
func (r *Record) openFreezer() (freezer, error) {
	name := "freezer.state"
	f := freezer{
		frozen: string(cgroups.Frozen), thawed: string(cgroups.Thawed), dir: r.CgroupPaths["freezer"], self: "freezer.self_freezing",
	}
	if f.dir == "" {
		if !cgroups.IsCgroup2UnifiedMode() || r.CgroupPaths[""] == "" {
			return freezer{}, errors.New("the container has no freezer")
		}
		name = "cgroup.freeze"
		f = freezer{frozen: "1", thawed: "0", dir: r.CgroupPaths[""], self: "cgroup.freeze"}
	}
	path := filepath.Join(f.dir, name)
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return freezer{}, fmt.Errorf("open %s: %w", path, err)
	}
	f.fd = fd
	return f, nil
}

// set is what has been written last.
func (f freezer) set() (string, error) {
	self, err := cgroups.ReadFile(f.dir, f.self)
	if err != nil {
		return "", err
	}
	if strings.TrimSpace(self) == "1" {
		return f.frozen, nil
	}
	return f.thawed, nil
}

// thaw succeeds if the cgroup is gone.
func (f freezer) thaw() error { return unlessGone(f.write(f.thawed)) }

func (f freezer) write(state string) error {
	for {
		_, err := unix.Write(f.fd, []byte(state))
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// unfreeze succeeds if the cgroup is gone.
func (r *Record) unfreeze() error {
	f, err := r.openFreezer()
	if err != nil {
		return unlessGone(err)
	}
	defer unix.Close(f.fd)
	return f.thaw()
}

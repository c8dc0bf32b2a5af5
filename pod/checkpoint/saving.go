package checkpoint

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/coracle-project/coracle/pod/state"
	"github.com/coracle-project/coracle/pod/table"
)

// noteSaving notes, before they are made, files of a checkpoint that is being made of a container.
func noteSaving(e *state.ContainerEntry, paths ...string) error {
	return e.Update(func(r *state.ContainerRecord) { r.Saving = append(slices.Clone(r.Saving), paths...) })
}

// forgetSaving forgets them: they are gone, or have become a checkpoint. A container that was
// removed meanwhile has forgotten them already.
func forgetSaving(e *state.ContainerEntry, paths ...string) error {
	err := e.Update(func(r *state.ContainerRecord) {
		r.Saving = slices.DeleteFunc(slices.Clone(r.Saving), func(p string) bool { return slices.Contains(paths, p) })
	})
	if errors.Is(err, table.ErrGone) {
		return nil
	}
	return err
}

// unfinished are files that a failed checkpoint or a killed daemon left, by the directory that they
// are in.
type unfinished struct {
	mu    sync.Mutex
	paths map[string][]string
}

func (u *unfinished) add(paths []string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.paths == nil {
		u.paths = map[string][]string{}
	}
	for _, p := range paths {
		dir := filepath.Dir(p)
		if !slices.Contains(u.paths[dir], p) {
			u.paths[dir] = append(u.paths[dir], p)
		}
	}
}

func (u *unfinished) in(dir string) []string {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.Clone(u.paths[dir])
}

func (u *unfinished) gone(dir string, paths []string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	left := slices.DeleteFunc(u.paths[dir], func(p string) bool { return slices.Contains(paths, p) })
	if u.paths[dir] = left; len(left) == 0 {
		delete(u.paths, dir)
	}
}

// DropLater removes leftovers of checkpoints in the background until it succeeds. Their disk may
// hang. id is for the log.
func (c *Store) DropLater(id string, paths []string) {
	if len(paths) == 0 {
		return
	}
	c.unfinished.add(paths)
	c.Clean.Queue("unfinished checkpoint", id, func(ctx context.Context) error {
		var errs []error
		for _, p := range paths {
			errs = append(errs, c.dropUnfinished(ctx, filepath.Dir(p)))
		}
		return errors.Join(errs...)
	})
}

// dropUnfinished removes what is left of checkpoints in a directory.
func (c *Store) dropUnfinished(ctx context.Context, dir string) error {
	if len(c.unfinished.in(dir)) == 0 {
		return nil
	}
	release, err := c.savingIn.Acquire(ctx, dir)
	if err != nil {
		return err
	}
	defer release()
	return c.dropUnfinishedLocked(dir)
}

// dropUnfinishedLocked needs the directory for itself: a new checkpoint there has files of the same
// names. So all records forget them together, for the clean-up that the others have asked for comes
// when there may be new ones.
func (c *Store) dropUnfinishedLocked(dir string) error {
	paths := c.unfinished.in(dir)
	if len(paths) == 0 {
		return nil
	}
	if err := removeAll(paths); err != nil {
		return err
	}
	var errs []error
	for _, e := range c.Containers.Each(func(r *state.ContainerRecord) bool { return len(r.Saving) > 0 }) {
		errs = append(errs, forgetSaving(e, paths...))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	c.unfinished.gone(dir, paths)
	return nil
}

func removeAll(paths []string) error {
	var errs []error
	for _, p := range paths {
		errs = append(errs, os.RemoveAll(p))
	}
	return errors.Join(errs...)
}

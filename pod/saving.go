package pod

import (
	"context"
	"errors"
	"os"
	"slices"
)

// saving notes, before they are made, files of a checkpoint that is being made of a container.
func saving(e *entry[containerRecord], paths ...string) error {
	return e.update(func(r *containerRecord) { r.Saving = append(slices.Clone(r.Saving), paths...) })
}

// saved forgets them: they are gone, or have become a checkpoint. A container that was removed meanwhile has
// forgotten them already.
func saved(e *entry[containerRecord], paths ...string) error {
	err := e.update(func(r *containerRecord) {
		r.Saving = slices.DeleteFunc(slices.Clone(r.Saving), func(p string) bool { return slices.Contains(paths, p) })
	})
	if errors.Is(err, errGone) {
		return nil
	}
	return err
}

// dropSaving has removed, in the background, what a daemon that was killed left of checkpoints. Nobody was ever
// told of it, and the disk that it is on may hang.
func (m *Manager) dropSaving(e *entry[containerRecord]) {
	paths := e.get().Saving
	if len(paths) == 0 {
		return
	}
	m.clean.queue("unfinished checkpoint", e.id, func(context.Context) error {
		var errs []error
		for _, p := range paths {
			errs = append(errs, os.RemoveAll(p))
		}
		if err := errors.Join(errs...); err != nil {
			return err
		}
		return saved(e, paths...)
	})
}

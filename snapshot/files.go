package snapshot

import (
	"context"
	"fmt"
	"io"

	"golang.org/x/sys/unix"
)

// Files writes all that a snapshot shows as an uncompressed archive, in the form that
// Changes writes what has changed in. ErrNotFound if there is no such snapshot;
// ErrInvalid if it has names that no archive can hold, or more than there is room for.
func (s *Store) Files(ctx context.Context, id string, to io.Writer) error {
	release, err := s.busy.Acquire(ctx, id)
	if err != nil {
		return fmt.Errorf("files of snapshot %w", err)
	}
	defer release()
	snap, err := s.Get(id)
	if err != nil {
		return err
	}
	w := newChangeWriter(to)
	if err := w.everything(ctx, snap.Target); err != nil {
		return fmt.Errorf("files of snapshot %s: %w", id, err)
	}
	if err := w.tar.Close(); err != nil {
		return fmt.Errorf("files of snapshot %s: %w", id, err)
	}
	return nil
}

// everything writes a directory as one that nothing is beneath.
func (w *changeWriter) everything(ctx context.Context, dir string) error {
	fd, err := openRoot(dir)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := w.root(fd); err != nil {
		return err
	}
	return w.comparedDir(ctx, fd, nil, "", 0)
}

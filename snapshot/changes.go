package snapshot

import (
	"context"
	"fmt"
	"io"

	"github.com/coracle-project/coracle/snapshot/diff"
)

// Changes writes what a snapshot has and its layers have not as an uncompressed archive
// in tar's PAX format, with the whiteouts of the OCI image specification (layer.md): it
// unpacks to a layer that shows, over those of the snapshot, what the snapshot shows now.
// Names are sorted, so that the same changes make the same archive. Ids are the
// container's own, attributes those that unpacking keeps, sockets are left out.
//
// A container that goes on writing meanwhile should be paused: each file is consistent
// only in its length. ErrNotFound if there is no such snapshot; ErrInvalid if it has
// names that no archive can hold, or more than there is room for.
func (s *Store) Changes(ctx context.Context, id string, to io.Writer) error {
	release, err := s.busy.Acquire(ctx, id)
	if err != nil {
		return fmt.Errorf("changes of snapshot %w", err)
	}
	defer release()
	snap, err := s.Get(id)
	if err != nil {
		return err
	}
	if err := s.checkRecord(id); err != nil {
		return fmt.Errorf("changes of %w", err)
	}
	w := diff.NewWriter(to)
	r, release := s.rootfs(snap)
	defer release()
	if err := s.driver.Changes(ctx, r, w); err != nil {
		return fmt.Errorf("changes of snapshot %s: %w", id, err)
	}
	if err := w.Close(); err != nil {
		return fmt.Errorf("changes of snapshot %s: %w", id, err)
	}
	return nil
}

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
	w := diff.NewWriter(to)
	if err := w.Everything(ctx, snap.Target); err != nil {
		return fmt.Errorf("files of snapshot %s: %w", id, err)
	}
	if err := w.Close(); err != nil {
		return fmt.Errorf("files of snapshot %s: %w", id, err)
	}
	return nil
}
